"""Checks the rooms of a Synapse server, in this process or on Spark, and adds what is found to the report. Needs Django.

The tasks on Spark read the same snapshot as the rest of the report. A server that cannot share a snapshot, such as a
standby, is examined in this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from pipeline.doctor.check_rooms import check_in_snapshot, check_rooms
from pipeline.doctor.report import Checked, Remedy, Report, RoomResult
from pipeline.doctor.server_database import ServerDatabase
from pipeline.doctor.server_rooms import Context
from pipeline.doctor.sizes import COMPRESS, HOW_TO_COMPRESS
from pipeline.errors import JavaMissing
from pipeline.maintenance.many_rooms import EVENTS_IN_PROCESS
from pipeline.maintenance.room_tasks import SizedRoom, ask_packs, pack
from pipeline.spark.site_session import site_session
from streams.jobs.errors import UnusableArguments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_many_rooms"]

_EVENTS_PER_TASK = 20_000
_SAY_SECONDS = 5.0
_NEEDED = (
    "events", "event_json", "rooms", "rejections", "event_to_state_groups", "state_groups", "state_group_edges",
    "state_groups_state", "current_state_events", "event_forward_extremities",
)  # fmt: skip
_OPTIONAL = ("partial_state_rooms", "local_current_membership", "ex_outlier_stream")
_SIZES = "SELECT room_id, count(*) FROM events GROUP BY room_id"
_SOME_SIZES = "SELECT room_id, count(*) FROM events WHERE room_id = ANY (%s) GROUP BY room_id"
_SERVER = "SELECT user_id FROM local_current_membership LIMIT 1"
_SUBJECT = "rooms computed again"


def check_many_rooms(
    dsn: str,
    database: ServerDatabase,
    report: Report,
    say: Callable[[str], None],
    *,
    rooms: Sequence[str] | None,
    master: str | None,
) -> None:
    """Checks all rooms, or those that ``rooms`` names. Raises ``UnusableArguments`` for a room without events."""
    found = database.rows(
        _SUBJECT, _NEEDED, _SIZES if rooms is None else _SOME_SIZES, None if rooms is None else [list(rooms)]
    )
    if found is None:
        return
    sized = [SizedRoom(room_id, events) for room_id, events in found]
    if rooms is not None and (unknown := set(rooms) - {room.room_id for room in sized}):
        raise UnusableArguments(f"The server has no events of the room {', '.join(map(repr, sorted(unknown)[:5]))}.")
    users = database.rows("name of the server", ("local_current_membership",), _SERVER) or [("",)]
    context = Context(users[0][0].partition(":")[2], frozenset(table for table in _OPTIONAL if database.has(table)))
    started, total = time.monotonic(), sum(room.size for room in sized)
    report.checked = Checked()
    progress = _Progress(say, total)
    with ExitStack() as stack:
        spark = _session(stack, sized, total, master, say)
        snapshot = database.shared
        if spark is not None and snapshot is None:
            say("The server cannot share its snapshot, so rooms are computed in this process.")
        started = time.monotonic()
        on_spark = spark is not None and snapshot is not None
        for results in (
            _on_spark(spark, dsn, snapshot, context, sized) if on_spark else _in_process(database, context, sized)
        ):
            for result in results:
                report.add_room(result)
                progress.add(result.events)
        report.checked.seconds = round(time.monotonic() - started, 3)
    if rooms is None:
        _measure_compression(report, report.checked)


def _session(
    stack: ExitStack, rooms: Sequence[SizedRoom], total: int, master: str | None, say: Callable[[str], None]
) -> SparkSession | None:
    if master is None and (len(rooms) < 2 or total <= EVENTS_IN_PROCESS):
        return None
    try:
        say("Starting Spark …")
        return stack.enter_context(site_session("doctor", master, light=True))
    except JavaMissing as missing:
        if master is not None:
            raise
        say(f"{missing} Going on in this process.")
        return None


def _in_process(
    database: ServerDatabase, context: Context, rooms: Sequence[SizedRoom]
) -> Iterator[Iterable[RoomResult]]:
    for some in pack(rooms, _EVENTS_PER_TASK):
        yield check_rooms(database.connection, [room.room_id for room in some], context)


def _on_spark(
    spark: SparkSession | None, dsn: str, snapshot: str | None, context: Context, rooms: Sequence[SizedRoom]
) -> Iterator[Iterable[RoomResult]]:
    assert spark is not None and snapshot is not None  # noqa: S101 - the caller has both
    work = partial(check_in_snapshot, dsn, snapshot, context)
    group = ("replsite doctor", "replsite doctor: rooms computed again")
    for _, answers in ask_packs(spark, group, pack(rooms, _EVENTS_PER_TASK), work):
        yield answers


def _measure_compression(report: Report, checked: Checked) -> None:
    # In place of the upper bound, now that all states are known.
    if report.groups is None:
        return
    size = round(max(checked.rows - checked.rows_needed, 0) * report.groups.row_bytes)
    others = [remedy for remedy in report.remedies if remedy.subject != COMPRESS]
    exact = [Remedy(COMPRESS, size, HOW_TO_COMPRESS)] if size else []
    report.remedies = sorted([*others, *exact], key=lambda remedy: (-remedy.bytes, remedy.subject))


class _Progress:
    def __init__(self, say: Callable[[str], None], total: int) -> None:
        self._say, self._total, self._done = say, total, 0
        self._started = self._reported_at = time.monotonic()

    def add(self, events: int) -> None:
        self._done += events
        now = time.monotonic()
        if now - self._reported_at < _SAY_SECONDS:
            return
        self._reported_at = now
        rate = self._done / (now - self._started)
        left = (self._total - self._done) / rate if rate else 0
        self._say(f"{self._done:,} of {self._total:,} events computed again, {rate:,.0f} events/s, {left:,.0f} s left")
