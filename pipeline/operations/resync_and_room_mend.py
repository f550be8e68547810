"""``resync WHAT`` and ``room mend``: compares stored values with recomputed values, and repairs differences.

The job may run while other processes write.

Each room with differences is repaired in a transaction of its own, under the room's lock. ``events.integrity.room_mending``
does the work, in this process or on Spark (``pipeline.maintenance.many_rooms``). Values that cannot be recomputed are
reported, and not changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from events.arguments import can_be_stored
from events.integrity.compare import EVERYTHING, SUBJECTS, RoomReport, includes_subject
from events.integrity.repair import all_rooms
from events.maintenance.room_arguments import ALL_ROOMS, ROOMS
from events.models import CurrentState, Room
from events.persist.room_cache import clear_caches
from events.room_lock import changing_room
from pipeline.errors import PipelineError
from pipeline.maintenance.many_rooms import ManyRooms
from pipeline.maintenance.resync_executor import RoomAnswer
from pipeline.maintenance.room_progress import RoomProgress
from pipeline.maintenance.room_tasks import MASTER
from streams.db import driver
from streams.jobs.arguments import JSON, Argument, Type, dry_run
from streams.jobs.errors import UnusableArguments
from streams.jobs.job_run import JobRun
from streams.jobs.operation import Operation, Words, operation
from streams.maintenance import check as inspection
from streams.maintenance.table_sequences import inspect_tables, repair_tables

__all__ = ["OF_ROOMS", "RESYNCED", "Resync", "compare_rooms", "resync_caches"]

RESYNCED = (*SUBJECTS, EVERYTHING, "positions", "caches")
OF_ROOMS = (*SUBJECTS, EVERYTHING)
"""The subjects that are compared room by room. If there are many events, Spark compares the rooms."""
_MENDS = {
    "state": "events' columns and verdicts, edges, auth events, states, current state, redactions and flags",
    "extremities": "the forward extremities and gaps of the graph",
    "visibility": "who sees what",
    "rooms": "state, extremities and visibility in one pass",
    "positions": "sequences of streams and tables that are behind, or not as they must be",
    "caches": "what processes keep of rooms: it is dropped everywhere",
}
_MOST_LISTED = 100


def _room_ids(_: str, value: Any) -> list[str]:
    rooms: list[str] = ROOMS.value({ROOMS.name: value})
    if unusable := [room for room in rooms if not can_be_stored(room)]:
        raise UnusableArguments(f"{unusable[0]!r:.300} is no room ID: no column can hold it.")
    return rooms


def _words(words: str, subject: str) -> Words:
    without = set() if subject in OF_ROOMS else {MASTER.name, "resume"}
    if subject == "positions":
        without |= {ROOMS.name, ALL_ROOMS.name}
    return Words(
        words,
        f"Compare and mend {_MENDS[subject]}. Each room is a transaction of its own, beside writers; what cannot be known is "
        "told and left. Exit status 1 when something is wrong at the end.",
        f"{words} --dry-run" + ("" if subject == "positions" else " --all"),
        given={"what": subject},
        without=without,
    )


@operation
class Resync(Operation):
    """Compares and repairs the values of one subject, such as state, in some rooms or in all rooms."""

    name = "resync"
    help = "Compare what is stored of rooms with what follows from their events, and mend what differs."
    arguments = (
        Argument(
            "what", Type.CHOICE, "what is compared, and mended afterwards", typed=None, required=True, choices=RESYNCED
        ),
        replace(ROOMS, check=_room_ids),
        ALL_ROOMS,
        MASTER,
        Argument("resume", Type.FLAG, "go on with the run of these options that was killed or failed", stored=False),
        dry_run("only compare"),
        JSON,
    )
    commands = (*(_words(f"resync {subject}", subject) for subject in RESYNCED), _words("room mend", EVERYTHING))

    def check_together(self, checked: dict[str, Any]) -> None:
        """Raises ``UnusableArguments`` if a given argument does not apply to the subject.

        ``positions`` takes no rooms. Only the subjects in ``OF_ROOMS`` take a Spark master.
        """
        subject = checked["what"]
        if subject == "positions" and checked["rooms"]:
            raise UnusableArguments("Positions are of streams: name no rooms.")
        if checked["master"] is not None and subject not in OF_ROOMS:
            raise UnusableArguments(f"resync {subject} asks the database alone: leave the master out.")

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Compares the stored values and repairs differences, except in a dry run. Returns the summary.

        The summary has the numbers of differences before and after the repair, and lists the first differences.
        """
        subject = run.arguments["what"]
        if subject in OF_ROOMS:
            return compare_rooms(run)
        work = {"positions": _positions, "caches": _caches}[subject]
        return {"what": subject, "dry_run": run.arguments["dry_run"], **work(run)}

    plan = run

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        for found in summary.get("differences", ()):
            about = f"{found['table']} {found['key']} {found['column']}"
            yield f"{found['room_id']}: {about}: {found['stored']!r} -> {found['computed']!r}"
        before, after = summary.get("before", {}), summary.get("after", {})
        for name, count in sorted(before.items()):
            yield f"{name}: {count} -> {after.get(name, 0 if isinstance(count, int) else 'ok')}"
        if "rooms" in summary:
            wrong = f", {summary['rooms_wrong']} differed" if "rooms_wrong" in summary else ""
            yield f"resync {summary['what']}: {summary['rooms']} rooms{wrong}"
        elif not before:
            yield f"resync {summary['what']}: nothing differs"

    def check_outcome(self, arguments: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Raises ``UnusableArguments`` for rooms that do not exist. Raises ``PipelineError`` if differences remain."""
        if summary.get("unknown"):
            raise UnusableArguments(f"There is no room {', '.join(summary['unknown'][:5])}.")
        if summary["left"]:
            raise PipelineError(f"resync {summary['what']}: {summary['left']} differences are left.")


OnRoom = Callable[[str, RoomReport | None], object]


def compare_rooms(run: JobRun, on_room: OnRoom = lambda _room_id, _report: None) -> Mapping[str, Any]:
    """Compares the rooms that the job's arguments name. Repairs differences, except in a dry run. Returns the summary.

    ``on_room`` is called with the ID of each room and the report from before its repair, or None if there is no such room.
    """
    return _Rooms(run, on_room).mend()


class _Rooms:
    """One run of the job over its rooms. Counts the rooms, their events and the differences."""

    def __init__(self, run: JobRun, on_room: OnRoom) -> None:
        self._run = run
        self._on_room = on_room
        self._before: Counter[str] = Counter()
        self._after: Counter[str] = Counter()
        self._listed: list[dict[str, Any]] = []
        self._unknown: list[str] = []
        self._doubtful = 0
        self._rooms = self._events = self._wrong = 0

    def mend(self) -> Mapping[str, Any]:
        """Compares the rooms and repairs differences, except in a dry run. Returns the summary."""
        given = self._run.arguments
        many = ManyRooms(self._run, given["what"], mend=not given["dry_run"], master=given["master"])
        self._go_on(many.progress)
        for answer in many.answers(f"resync {given['what']}", given["rooms"]):
            self._add(answer)
            self._on_room(answer.room_id, answer.before)
            many.progress.add(answer.room_id)  # last, because it may store the counts, which must include this room
        many.progress.forget()
        self._run.store_before(dict(self._before))
        self._run.store_after(dict(self._after))
        return {
            "what": given["what"],
            "dry_run": given["dry_run"],
            "rooms": self._rooms,
            "events": self._events,
            "rooms_wrong": self._wrong,
            "before": dict(self._before),
            "after": dict(self._after),
            "left": sum(self._after.values()),
            "doubtful": self._doubtful,
            "unknown": self._unknown,
            "differences": self._listed,
        }

    def _go_on(self, progress: RoomProgress) -> None:
        """Restores the counts that an earlier run of the job stored before it was killed, if there are any.

        After this call, ``progress`` stores the counts of this run.
        """
        progress.counts_by(self._counted)
        if (counted := progress.counted) is not None:
            self._before, self._after = Counter(counted["before"]), Counter(counted["after"])
            self._listed, self._unknown = list(counted["listed"]), list(counted["unknown"])
            self._rooms, self._events, self._wrong, self._doubtful = counted["figures"]

    def _counted(self) -> Mapping[str, Any]:
        return {
            "before": self._before,
            "after": self._after,
            "listed": self._listed,
            "unknown": self._unknown,
            "figures": [self._rooms, self._events, self._wrong, self._doubtful],
        }

    def _add(self, answer: RoomAnswer) -> None:
        subject, before, after = self._run.arguments["what"], answer.before, answer.after
        if before is None or after is None:
            self._unknown += [answer.room_id]
            return
        self._rooms += 1
        self._events += before.events
        self._wrong += before.of(subject) > 0
        self._doubtful += after.doubtful
        for totals, report in ((self._before, before), (self._after, after)):
            totals.update(
                {table: count for (found, table), count in report.totals.items() if includes_subject(subject, found)}
            )
        for difference in before.differences:
            if includes_subject(subject, difference.subject) and len(self._listed) < _MOST_LISTED:
                self._listed.append({"room_id": answer.room_id, **difference.as_json()})


def resync_caches(room_id: str, using: str) -> bool:
    """Makes every process drop its cached values of a room. Returns false if the room does not exist."""
    # Every write to a room takes this lock first, so the members that are read below do not change meanwhile.
    with changing_room(room_id, using) as (_, rows):
        if not Room.objects.using(using).filter(pk=room_id).exists():
            return False
        members = CurrentState.objects.using(using).filter(room_id=room_id, type="m.room.member")
        rows.drop_state(room_id, members.order_by("state_key").values_list("state_key", flat=True))
    clear_caches()
    return True


def _caches(run: JobRun) -> Mapping[str, Any]:
    rooms, there, unknown = run.arguments["rooms"], 0, []
    total = Room.objects.using(run.using).count() if rooms is None else len(rooms)
    with run.stage("resync caches", total, "rooms") as count:
        for room_id in dict.fromkeys(rooms) if rooms is not None else all_rooms(run.using):
            known = can_be_stored(room_id) and (
                Room.objects.using(run.using).filter(pk=room_id).exists()
                if run.arguments["dry_run"]
                else resync_caches(room_id, run.using)
            )
            there += known
            unknown += [] if known else [room_id]
            count.add()
    return {"rooms": there, "unknown": unknown, "left": 0}


def _positions(run: JobRun) -> Mapping[str, Any]:
    """Mends sequences, and advances those behind their tables or stored positions, unless the job is a dry run."""
    with (
        closing(driver.direct_connection(run.using, application_name="replsite resync")) as connection,
        run.stage("resync positions", None, "streams") as count,
    ):
        cursor = connection.cursor()
        before = _wrong_sequences(cursor)
        run.store_before(before)
        for _ in () if run.arguments["dry_run"] else (*repair_tables(cursor), *inspection.repair_streams(cursor)):
            count.add()
        after = _wrong_sequences(cursor)
        run.store_after(after)
    return {"before": before, "after": after, "left": len(after)}


def _wrong_sequences(cursor: Any) -> dict[str, str]:
    """Returns ``{stream, or table and column: what is wrong}``."""
    tables = {f"{found.table}.{found.column}": found.verdict for found in inspect_tables(cursor) if not found.well}
    return {found.stream: found.verdict for found in inspection.inspect_streams(cursor) if not found.well} | tables
