"""Asks a database which rooms and events of a pack it has. Runs in Spark's executors, without Django."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.frames.choose_events import NAMED, Mark, marks_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["stored_marks"]

#: So many IDs are asked for in a statement.
_MOST_IDS = 20_000
#: ``OFFSET 0``: each room is looked up, so that no plan reads all events.
_WITH_EVENTS = """
SELECT room_id FROM unnest(%s::text[]) AS asked (room_id)
WHERE EXISTS (SELECT FROM events_event e WHERE e.room_id = asked.room_id OFFSET 0)
"""
_ROOMS = "SELECT room_id FROM events_room WHERE room_id = ANY(%s)"
_EVENTS = "SELECT event_id, room_id, outlier FROM events_event WHERE event_id = ANY(%s)"


def stored_marks(cursor: Any, batches: Sequence[pa.RecordBatch], *, only_likely: bool = False) -> pa.Table:
    """Returns marks of the rooms and events in ``batches`` that the database of ``cursor`` has.

    ``batches`` have the columns ``room_id``, ``room_version`` and ``event_id``. With ``only_likely``, events of rooms without
    a stored event are not looked up, unless servers choose their IDs. Then an event has no mark if another room has an event
    with its ID, which a server has chosen.
    """
    import pyarrow as pa  # noqa: PLC0415 - executors only
    from pyarrow import compute  # noqa: PLC0415

    cursor.execute(
        "SET LOCAL enable_seqscan = off"
    )  # a plan must not depend on statistics of tables that grow meanwhile
    keys = pa.Table.from_batches([batch.select(["room_id", "room_version", "event_id"]) for batch in batches])
    marks = [(room_id, None, Mark.ROOM_STORED) for (room_id,) in _found(cursor, _ROOMS, keys["room_id"])]
    if only_likely:
        rooms = pa.array([room_id for (room_id,) in _found(cursor, _WITH_EVENTS, keys["room_id"])], pa.string())
        in_rooms = compute.is_in(keys["room_id"], value_set=rooms)
        keys = keys.filter(compute.or_(in_rooms, compute.is_in(keys["room_version"], value_set=pa.array(NAMED))))
    stored = {event_id: (room_id, outlier) for event_id, room_id, outlier in _found(cursor, _EVENTS, keys["event_id"])}
    if stored:
        likely = keys.filter(compute.is_in(keys["event_id"], value_set=pa.array(stored, pa.string())))
        for room_id, _, event_id in zip(*likely.to_pydict().values(), strict=True):
            of_room, is_outlier = stored[event_id]
            mark = Mark.STORED_OUTLIER if is_outlier else Mark.STORED
            marks.append((room_id, event_id, mark if of_room == room_id else Mark.STORED_ELSEWHERE))
    return marks_table(marks)


def _found(cursor: Any, sql: str, column: pa.ChunkedArray) -> Iterator[tuple[Any, ...]]:
    ids = column.unique()
    for first in range(0, len(ids), _MOST_IDS):
        cursor.execute(sql, [ids.slice(first, _MOST_IDS).to_pylist()])
        yield from cursor.fetchall()
