"""Choosing the events of a pack takes memory for columns of numbers, not for Python objects of each event."""

from __future__ import annotations

import tracemalloc

import pyarrow as pa

from pipeline.frames.choose_events import MARKS, choose_events
from pipeline.frames.schemas import EVENTS

EVENTS_OF_ROOM = 20_000
#: The characters of an event ID alone take 44, and a Python string 49 more.
BYTES_AN_EVENT = 80


def large_room(events: int) -> pa.RecordBatch:
    """Events of one room, each with an ID of its own."""
    values = {
        "source": [0] * events,
        "line": range(events),
        "stream_ordering": [None] * events,
        "room_id": ["!large:example.org"] * events,
        "room_version": ["10"] * events,
        "event_id": [f"${number:043}" for number in range(events)],
        "type": ["m.room.message"] * events,
        "outlier": [False] * events,
        "content_hash_matches": [True] * events,
    }
    schema = EVENTS.arrow()
    columns = [
        pa.array(values[field.name], field.type) if field.name in values else pa.nulls(events, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def test_event_ids_without_copies_do_not_become_python_objects() -> None:
    room = large_room(EVENTS_OF_ROOM)
    marks = pa.table({name.split()[0]: pa.array([], pa.string()) for name in MARKS.split(", ")})
    choose_events([large_room(10)], marks)  # imports what it needs
    tracemalloc.start()
    try:
        chosen = choose_events([room], marks)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert chosen.order.tolist() == list(range(EVENTS_OF_ROOM)) and chosen.set_aside.num_rows == 0
    assert most / EVENTS_OF_ROOM < BYTES_AN_EVENT, most / EVENTS_OF_ROOM
