"""Checks stored rooms in Spark tasks, and returns their damage as a frame. Needs no Django.

A task checks its rooms one after the other, with the functions of ``events.integrity`` that ``manage.py room check``
uses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from events.integrity.compare import differences
from events.integrity.room_mending import find_damage
from pipeline.frames.schemas import Column, FrameSchema
from pipeline.frames.stored_sql import RoomPart, rooms_sql
from pipeline.source.shared_snapshot import few_rows_in_snapshot
from streams.runtime.gc_pause import collector_paused

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DAMAGE", "damage_of_rooms"]

DAMAGE = FrameSchema(
    "damage",
    "Stored values that are not what follows from the stored events: a row for each difference that `room check` finds.",
    {
        "room_id": Column("string", False, "the room"),
        "subject": Column("string", False, "the subject of `resync` that repairs it"),
        "table": Column("string", False, "the table"),
        "key": Column("string", False, "the row: an event ID, or what the table has instead"),
        "column": Column("string", False, "the column, or what is wrong"),
        "stored": Column("string", True, "the stored value as JSON; null: none"),
        "computed": Column("string", True, "the value that it should have, as JSON; null: none, or unknown"),
        "mendable": Column("boolean", False, "false: it cannot be computed again"),
    },
    ("room_id", "table", "key", "column"),
)
"""The columns of the damage that a check finds."""
_ROWS_PER_BATCH = 1_000
_ALONE = "SET LOCAL max_parallel_workers_per_gather = 0"  # there are as many tasks as cores


def damage_of_rooms(dsn: str, snapshot: str, name: str, part: RoomPart) -> Iterator[pa.RecordBatch]:
    """Yields the damage of all rooms of a part, with the columns of ``DAMAGE``. Reads the shared snapshot ``snapshot``."""
    import pyarrow as pa  # noqa: PLC0415 - executors only

    schema = DAMAGE.arrow()
    with few_rows_in_snapshot(dsn, snapshot, name) as cursor:
        cursor.execute(_ALONE)
        cursor.execute(rooms_sql(part))
        for (room_id,) in cursor.fetchall():
            with collector_paused():
                found = find_damage(cursor, room_id)
                rows = [
                    (room_id, d.subject, d.table, d.key, d.column, _json(d.stored), _json(d.computed), d.mendable)
                    for d in (differences(found.computed) if found is not None else ())
                ]
            for start in range(0, len(rows), _ROWS_PER_BATCH):
                batch = rows[start : start + _ROWS_PER_BATCH]
                yield pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in batch], schema)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
