"""Loads the new rooms of an import. Each task computes one pack of rooms, and loads it in one transaction.

A task reads the staged events of its rooms, sorted by room. It computes the rows of one room after the other, as
``work_out_rooms`` does, and copies them into the site's tables (``pipeline.loading.load_pack``). If a task is repeated,
it finds its rooms in the ledger and loads nothing.

``load_rooms`` runs in Spark's driver, everything else in executors. Needs no Django.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from events.history.rows import EVENTS_PER_CHUNK
from pipeline.connections import connect_arrow
from pipeline.frames.bundles import gathered
from pipeline.frames.room_events import rooms_of
from pipeline.frames.room_rows import room_rows
from pipeline.frames.schemas import EVENTS
from pipeline.importing.plan import PlannedRoom
from pipeline.importing.stage_lines import LINES_PER_PART
from pipeline.importing.staging_tables import (
    EVENT_COLUMNS,
    ROOMY,
    STAGED_EVENTS,
    WORKING,
    staging_connection,
    table_name,
)
from pipeline.loading.load_pack import LoadWork, load_pack
from pipeline.loading.pack_rows import Pack
from pipeline.source.shared_snapshot import read_batches
from pipeline.spark.run_tasks import InProcess, run_tasks
from streams.db.long_transactions import NO_LIMITS
from streams.runtime.batches import bounded_batches
from streams.runtime.gc_pause import collector_paused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["EVENTS_PER_PACK", "RoomWork", "load_rooms", "pack_rooms"]

EVENTS_PER_PACK = 20_000
#: An event with a negative stream ordering is backfilled. Only the sign of this value matters.
_BACKWARD = -1
_ORDER = "k.room_no, k.stream_ordering NULLS LAST, k.seq"
#: Sorts the short rows of ``kept`` first, then looks up each staged event. OFFSET 0 keeps the planner from turning this into
#: a join that reads the events of all rooms.
_STAGED = f"""
SELECT k.seq / {LINES_PER_PART} AS source, k.seq % {LINES_PER_PART} AS line, {", ".join(f"e.{name}" for name in EVENT_COLUMNS)}
FROM (SELECT room_no, stream_ordering, seq FROM {{kept}} k WHERE room_no = ANY(ARRAY{{rooms}}) ORDER BY {_ORDER}) k
CROSS JOIN LATERAL (SELECT * FROM {{event}} staged WHERE staged.seq = k.seq OFFSET 0) e
ORDER BY {_ORDER}
"""


@dataclass(frozen=True, slots=True)
class RoomWork:
    """The parameters for loading rooms, the same for all tasks of a job.

    A room of more than ``chunk`` events is computed in chunks.
    """

    load: LoadWork
    as_history: bool
    chunk: int = EVENTS_PER_CHUNK


def load_rooms(spark: SparkSession | InProcess, work: RoomWork, packs: Sequence[Sequence[PlannedRoom]]) -> set[str]:
    """Computes and loads all rooms. Returns the IDs of rooms that were left out.

    A room is left out if another transaction has created the room since the import was planned, if the room is being
    purged, or if the room is blocked.
    """

    def load(number: int) -> str:
        return json.dumps(load_planned(work, packs[number]))

    return {room_id for answer in run_tasks(spark, len(packs), load) for room_id in json.loads(answer)}


def load_planned(work: RoomWork, rooms: Sequence[PlannedRoom]) -> Sequence[str]:
    """Computes and loads one pack of rooms. Returns the IDs of rooms that were left out."""
    with collector_paused(), closing(Pack()) as pack:
        for name, batch in gathered(_rows(work, rooms)):
            pack.add(name, batch)
        return load_pack(work.load, pack).left_out


def _rows(work: RoomWork, rooms: Sequence[PlannedRoom]) -> Iterator[tuple[str, pa.RecordBatch]]:
    numbers = {room.room_id: room.room_no for room in rooms}
    for room in rooms_of(_staged(work, rooms), _BACKWARD if work.as_history else None):
        if len(room) > work.chunk:
            yield from room_rows(room, work.chunk, partial(_store_progress, work.load, numbers[room.room_id]))
        else:
            yield from room_rows(room, work.chunk)


def _store_progress(work: LoadWork, room_no: int, events: int) -> None:
    with staging_connection(work.dsn) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table_name(work.job, WORKING.name)} (room_no, events) VALUES (%s, %s) "
            "ON CONFLICT (room_no) DO UPDATE SET events = excluded.events",
            [room_no, events],
        )


def _staged(work: RoomWork, rooms: Sequence[PlannedRoom]) -> Iterator[pa.RecordBatch]:
    """Yields the staged events of the rooms with the columns of ``EVENTS``, room after room, and sorted within a room."""
    schema = EVENTS.arrow()
    names = {name: table_name(work.load.job, name) for name in ("kept", STAGED_EVENTS.name)}
    with closing(connect_arrow(work.load.dsn, "replsite spark staging")) as connection, connection.cursor() as cursor:
        cursor.execute(ROOMY)
        cursor.execute(NO_LIMITS)
        cursor.fetchall()
        for batch in read_batches(cursor, _STAGED.format(**names, rooms=[room.room_no for room in rooms])):
            yield batch.cast(schema)


def pack_rooms(rooms: Sequence[PlannedRoom], events: int = EVENTS_PER_PACK) -> list[list[PlannedRoom]]:
    """Divides the rooms into packs of at most ``events`` events. A larger room is a pack of its own.

    The largest rooms come first. So no large room is computed alone at the end, while other cores are idle.
    """
    largest_first = sorted(rooms, key=lambda room: -room.events)
    return list(bounded_batches(largest_first, attrgetter("events"), events))
