"""Computes and loads one pack of rooms, in one transaction with its row in the ledger. Runs in Spark's executors, without Django.

A pack's task asks the database which of its rooms and events are stored. New rooms are computed as ``work_out_rooms`` does,
and copied into the site's tables. New events of stored rooms are staged, to be stored like live events at the end of the
job. Events that contradict their room, and those of rooms that cannot be loaded, go to the quarantine. If a task is
repeated, it finds the pack in the ledger and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from psycopg2.errors import UniqueViolation

from events.history.rows import EVENTS_PER_CHUNK
from pipeline.frames.bundles import gathered
from pipeline.frames.choose_events import ROOM_KNOWN, VERSION_DIFFERS, WRONG_ID, Chosen
from pipeline.frames.packs import PackEvents
from pipeline.frames.room_events import BACKWARD, rooms_of
from pipeline.frames.room_rows import room_rows
from pipeline.frames.sources.parts import HEAD_BYTES
from pipeline.frames.stored_marks import stored_marks
from pipeline.importing.staging_tables import finish_pack, is_pack_done, staging_connection, store_progress, tables
from pipeline.loading.copy_rows import copy_batches
from pipeline.loading.load_pack import LoadWork, load_in, pack_transaction
from pipeline.loading.pack_rows import Pack
from streams.runtime.gc_pause import collector_paused

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PackWork", "import_pack"]

ROOM_PURGED = "room-purged"
_STAGED = (
    *("source", "line", "room_id", "room_version", "event_id", "stream_ordering"),
    *("outlier", "rejected_reason", "soft_failed", "json"),
)
#: New events of rooms that were created after the pack's task had asked for them, that are still being purged, or that
#: are blocked.
_GIVE_UP = """
INSERT INTO {broken} (source, line, reason, detail, head)
SELECT source, line,
    CASE WHEN is_here THEN %s ELSE %s END,
    CASE WHEN is_here THEN 'room ' || room_id || ' came to be while this import worked; import it again'
        ELSE 'room ' || room_id || ' was purged and is blocked (manage.py purge room --unblock), or is not gone yet' END, head
FROM (
    SELECT *, EXISTS (SELECT FROM events_room r WHERE r.room_id = given.room_id) AS is_here
    FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::bytea[])
        AS given (source, line, room_id, event_id, head)
) AS given
WHERE NOT EXISTS (SELECT FROM events_event known WHERE known.event_id = given.event_id)
"""


@dataclass(frozen=True, slots=True)
class PackWork:
    """The parameters of loading, the same for all tasks of a job.

    A room of more than ``chunk`` events is computed in chunks.
    """

    load: LoadWork
    as_history: bool
    chunk: int = EVENTS_PER_CHUNK


def import_pack(
    work: PackWork, number: int, events: PackEvents, step: Callable[[str], None] = lambda name: None
) -> None:
    """Computes and loads the pack ``number``, unless the ledger has it already.

    ``step`` is called with the name of each finished step. Tests use ``step`` to end the process after a step.
    """
    # To look up all events takes up to a tenth of PostgreSQL's time. They are looked up if one is stored after all: a server
    # has chosen its ID for an event of another room.
    try:
        _import(work, number, events, step, only_likely=True)
    except UniqueViolation:
        _import(work, number, events, step, only_likely=False)


def _import(work: PackWork, number: int, events: PackEvents, step: Callable[[str], None], *, only_likely: bool) -> None:
    with collector_paused(), closing(Pack()) as pack:
        chosen = _choose(work.load, number, events, only_likely=only_likely)
        if chosen is None:
            return
        for name, batch in gathered(_rows(work, number, events, chosen)):
            pack.add(name, batch)
        count = sum(batch.num_rows for batch in events.batches)
        with pack_transaction(work.load.dsn) as cursor:
            if finish_pack(cursor, work.load.job, number, count):
                left_out = load_in(cursor, work.load, pack, step).left_out if len(chosen.order) else ()
                _stage(cursor, work.load.job, events, chosen)
                if left_out:
                    _give_up(cursor, work.load.job, events, chosen, left_out)
                step("staged")
        step("committed")


def _choose(load: LoadWork, number: int, events: PackEvents, *, only_likely: bool) -> Chosen | None:
    """Chooses the events to compute. Returns None if the pack is loaded already."""
    with staging_connection(load.dsn) as connection, connection.cursor() as cursor:
        if is_pack_done(cursor, load.job, number):
            return None
        return events.choose(partial(stored_marks, cursor, only_likely=only_likely))


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(work: PackWork, number: int, events: PackEvents, chosen: Chosen) -> Iterator[tuple[str, pa.RecordBatch]]:
    for room in rooms_of(events.rows(chosen.order), BACKWARD if work.as_history else None):
        if len(room) > work.chunk:
            yield from room_rows(room, work.chunk, partial(_store_progress, work.load, number))
        else:
            yield from room_rows(room, work.chunk)


def _store_progress(work: LoadWork, number: int, events: int) -> None:
    with staging_connection(work.dsn) as connection, connection.cursor() as cursor:
        store_progress(cursor, work.job, number, events)


# --- events that are not loaded ---------------------------------------------------------------------------------------


def _stage(cursor: Any, job: int, events: PackEvents, chosen: Chosen) -> None:
    """Stages the new events of stored rooms. Puts those into the quarantine that contradict their room or have another's ID."""
    import pyarrow as pa  # noqa: PLC0415 - executors only
    from pyarrow import compute  # noqa: PLC0415

    reasons = chosen.set_aside.column("reason")
    known = chosen.rows_aside[compute.equal(reasons, ROOM_KNOWN).to_numpy(zero_copy_only=False)]
    staged = (batch.select(_STAGED) for batch in events.rows(known))
    copy_batches(cursor, tables(job)["event"], staged)
    differs = compute.is_in(reasons, pa.array([VERSION_DIFFERS, WRONG_ID]))
    details = chosen.set_aside.filter(differs)
    heads = _heads(events, chosen.rows_aside[differs.to_numpy(zero_copy_only=False)])
    if details.num_rows:
        columns = {name: details.column(name) for name in ("source", "line", "reason", "detail")}
        columns["head"] = pa.array(heads, pa.binary())
        copy_batches(cursor, tables(job)["broken"], [pa.RecordBatch.from_pydict(columns)])


def _heads(events: PackEvents, rows: Any) -> list[bytes]:
    return [json.as_py()[:HEAD_BYTES] for batch in events.rows(rows) for json in batch.column("json")]


def _give_up(cursor: Any, job: int, events: PackEvents, chosen: Chosen, rooms: Collection[str]) -> None:
    """Puts the chosen events of ``rooms`` into the quarantine, except those that are stored now."""
    import pyarrow as pa  # noqa: PLC0415 - executors only
    from pyarrow import compute  # noqa: PLC0415

    left_out = pa.array(rooms, pa.string())
    sql = _GIVE_UP.format(**tables(job))
    for batch in events.rows(chosen.order):
        lost = batch.filter(compute.is_in(batch.column("room_id"), left_out))
        if lost.num_rows:
            values: list[Sequence[Any]] = [
                lost.column(name).to_pylist() for name in ("source", "line", "room_id", "event_id")
            ]
            heads = [json.as_py()[:HEAD_BYTES] for json in lost.column("json")]
            cursor.execute(sql, [ROOM_KNOWN, ROOM_PURGED, *values, heads])
