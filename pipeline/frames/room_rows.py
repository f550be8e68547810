"""Converts the rows of one room to batches of the frames of rooms. Runs in Spark's executors, without Django.

``events.history.rows.RoomHistory`` computes the rows, and this module converts them to Arrow columns. Some columns are
copied unchanged from the source's Arrow columns: places in the source, given stream orderings, and JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from events.columns import EVENT_COLUMNS
from events.history.rows import EVENTS_PER_CHUNK, EventPart, RoomHistory
from events.visibility.ranges import BEFORE_LIVE
from pipeline.frames.room_events import RoomEvents
from pipeline.frames.schemas import ROOM_FRAMES

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["room_rows"]

_ROWS_PER_BATCH = 5_000
#: Column of the frame ``events`` -> its index among the columns of an ``EventPart``, whose state group is a number.
_OF_PART = {"group_number" if name == "state_group" else name: at for at, name in enumerate(EVENT_COLUMNS)}


def room_rows(
    room: RoomEvents, chunk: int = EVENTS_PER_CHUNK, watch: Callable[[int], None] = lambda _: None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields all rows of a room, in batches of bounded size, as (name of the frame, batch).

    Before the first batch, ``watch`` is called after each chunk with the number of events for which event auth is done.
    Raises ``HistoryError`` if ``room`` has the same event twice.
    """
    history = RoomHistory(room, chunk, watch)
    places = {name: room.column(name) for name in ("source", "line", "stream_ordering")}
    of_room = (
        history.version.name,
        history.creator,
        history.create_event_id,
        history.current_state_unresolved,
        history.visibility_unresolved,
    )
    yield "rooms", _batch("rooms", room.room_id, [of_room])
    for part in history.events():
        yield "events", _events(room.room_id, part, places)
        graph = [event for event in part.events if not event.outlier]
        edges = [(event.event_id, prev) for event in graph for prev in event.prev_event_ids]
        yield "edges", _batch("edges", room.room_id, edges)
        auth = [(event.event_id, event.auth_event_ids) for event in part.events if event.is_state]
        yield "auth_edges", _batch("auth_edges", room.room_id, auth)
    for batch in room.batches:
        yield "event_json", batch.select(ROOM_FRAMES["event_json"].names)
    for name, rows in _others(history, _Positions(places["stream_ordering"])):
        left = iter(rows)
        while some := list(islice(left, _ROWS_PER_BATCH)):
            yield name, _batch(name, room.room_id, some)


def _others(history: RoomHistory, given: _Positions) -> Iterator[tuple[str, Iterable[Sequence[Any]]]]:
    """Yields (name of the frame, its rows) for the frames whose rows do not belong to single events.

    The rows lack the first column, which is the room.
    """
    yield "forward_extremities", ((event_id,) for event_id in history.forward_extremities())
    yield "backward_extremities", ((event_id,) for event_id in history.backward_extremities())
    yield "timeline_gaps", ((number, given[number]) for number in history.timeline_gaps())
    yield "state_groups", history.groups()
    yield "state_group_deltas", history.group_deltas()
    yield "current_state", history.current_state()
    yield "current_state_deltas", ((number, given[number], *entry) for number, *entry in history.state_deltas())
    yield (
        "visibility",
        (
            (
                row.user_id,
                row.kind,
                None if row.first == BEFORE_LIVE else row.first,
                row.last,
                0 if row.first == BEFORE_LIVE else given[row.first],
                None if row.last is None else given[row.last],
            )
            for row in history.visibility()
        ),
    )


class _Positions:
    """A lookup from an event's number within the room to the stream ordering that the source gave the event."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column

    def __getitem__(self, number: int) -> int | None:
        found: int | None = self._column[number].as_py()
        return found


def _batch(name: str, room_id: str, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Converts rows of the frame ``name`` to a batch. ``rows`` lack the first column, which is the room."""
    import pyarrow as pa  # noqa: PLC0415 - executors only

    schema = ROOM_FRAMES[name].arrow()
    columns = zip(*rows, strict=True) if rows else ((),) * (len(schema) - 1)
    arrays = [pa.repeat(pa.scalar(room_id, pa.string()), len(rows))]
    arrays += [pa.array(values, field.type) for values, field in zip(columns, list(schema)[1:], strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _events(room_id: str, part: EventPart, places: dict[str, pa.Array]) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - executors only

    count = len(part.events)
    found: dict[str, Any] = {name: column.slice(part.first, count) for name, column in places.items()}
    found["room_id"] = pa.repeat(pa.scalar(room_id, pa.string()), count)
    found["number"] = range(part.first, part.first + count)
    found["backfilled"] = [event.backfilled for event in part.events]
    schema = ROOM_FRAMES["events"].arrow()
    arrays = []
    for field in schema:
        values = found[field.name] if field.name in found else part.columns[_OF_PART[field.name]]
        arrays.append(values if isinstance(values, pa.Array) else pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
