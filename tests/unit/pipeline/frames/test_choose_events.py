"""Which events of a pack count. Choosing takes memory for columns of numbers, not for Python objects of each event."""

from __future__ import annotations

import tracemalloc

import pyarrow as pa

from pipeline.frames.choose_events import KEYS_OF_COPIES, choose_events, copies_elsewhere, marks_table
from pipeline.frames.schemas import EVENTS
from pipeline.frames.stored_marks import stored_marks

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
    choose_events([large_room(10)], NO_MARKS)  # imports what it needs
    tracemalloc.start()
    try:
        chosen = choose_events([room], NO_MARKS)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert chosen.order.tolist() == list(range(EVENTS_OF_ROOM)) and chosen.set_aside.num_rows == 0
    assert most / EVENTS_OF_ROOM < BYTES_AN_EVENT, most / EVENTS_OF_ROOM


# --- which events count -----------------------------------------------------------------------------------------------

NO_MARKS = marks_table(())


def events(*rows) -> pa.RecordBatch:
    """Lines of a file: (room, event) and what differs from a plain message of version 10."""
    plain = {
        "source": 0,
        "room_version": "10",
        "type": "m.room.message",
        "outlier": False,
        "content_hash_matches": True,
    }
    made = [
        {**plain, "line": n, "room_id": room, "event_id": event, **more}
        for n, (room, event, more) in enumerate(rows, 1)
    ]
    return pa.RecordBatch.from_pylist(made, schema=EVENTS.arrow())


def ordered(batch: pa.RecordBatch, chosen) -> list[str]:
    return batch.column("event_id").take(pa.array(chosen.order)).to_pylist()


def test_of_equal_ids_the_first_that_has_a_place_is_chosen() -> None:
    batch = events(("!r", "$a", {"outlier": True}), ("!r", "$a", {"stream_ordering": 7}), ("!r", "$a", {}))
    assert choose_events([batch], NO_MARKS).order.tolist() == [1]


def test_events_of_a_room_come_in_the_given_order_and_else_in_that_of_the_lines() -> None:
    batch = events(("!late", "$c", {}), ("!b", "$b", {"stream_ordering": 9}), ("!late", "$d", {}),
                   ("!a", "$a", {"stream_ordering": 8}), ("!b", "$e", {"stream_ordering": 2}))  # fmt: skip
    found = ordered(batch, choose_events([batch], NO_MARKS))
    assert [[name for name in found if name in room] for room in ("$a", "$b$e", "$c$d")] == [
        ["$a"],
        ["$e", "$b"],
        ["$c", "$d"],
    ]


def test_a_room_has_the_version_of_its_create_event_though_most_name_another() -> None:
    batch = events(("!r", "$a", {"room_version": "9"}), ("!r", "$b", {"room_version": "9"}),
                   ("!r", "$c", {"type": "m.room.create"}), ("!s", "$d", {"room_version": "9"}), ("!s", "$e", {}),
                   ("!s", "$f", {}))  # fmt: skip
    chosen = choose_events([batch], NO_MARKS)
    assert sorted(ordered(batch, chosen)) == ["$c", "$e", "$f"] and chosen.rows_aside.tolist() == [0, 1, 3]
    aside = chosen.set_aside.to_pylist()
    assert [(row["line"], row["reason"]) for row in aside] == [(n, "room-version-differs") for n in (1, 2, 4)]
    assert aside[0]["detail"] == "said to be of version 9, but room !r has version 10"


def test_the_best_copy_of_an_event_counts_in_its_room_alone() -> None:
    """Events of three rooms. Equal IDs are in several rooms or twice in one room."""
    batch = events(("!a", "$1", {"outlier": True}), ("!b", "$1", {}), ("!c", "$1", {}),
                   ("!b", "$2", {"content_hash_matches": False}), ("!a", "$2", {}), ("!a", "$2", {}),
                   ("!c", "$3", {}), ("!c", "$3", {}), ("!a", "$4", {}))  # fmt: skip
    keys = pa.Table.from_batches([batch.select(list(KEYS_OF_COPIES))])
    marks = [tuple(row.values()) for row in copies_elsewhere(keys).to_pylist()]
    assert sorted(marks) == [("!a", "$1", "copy"), ("!b", "$2", "copy"), ("!c", "$1", "copy")]
    for given in (copies_elsewhere(keys), marks_table(())):  # of several packs, or of one
        chosen = choose_events([batch], given)
        assert sorted(chosen.order.tolist()) == [1, 4, 6, 8]
        aside = [tuple(row.values())[2:5] for row in chosen.set_aside.to_pylist()]
        assert sorted(aside) == [(room, event, "wrong-event-id") for room, event, _ in sorted(marks)]
    assert copies_elsewhere(keys.slice(0, 0)).num_rows == 0


# --- what a database has ----------------------------------------------------------------------------------------------


class _Cursor:
    """Answers questions for stored rooms and events as a database does."""

    def __init__(self, rooms, events):
        self._stored = {"events_room": rooms, "events_event": events}
        self._answer: list[tuple] = []

    def execute(self, sql, values=None):
        if values is None:
            return
        (ids,) = values
        table = next(name for name in self._stored if f"FROM {name} " in sql)
        self._answer = [row for row in self._stored[table] if row[0] in ids]

    def fetchall(self):
        return self._answer


def test_what_is_stored_is_left_out_but_for_an_outlier_that_comes_with_its_place() -> None:
    stored = [("$here", "!r", False), ("$outlier", "!r", True), ("$still", "!r", True), ("$far", "!r", True)]
    batch = events(("!r", "$here", {}), ("!r", "$outlier", {}), ("!r", "$still", {"outlier": True}),
                   ("!other", "$here", {}), ("!other", "$far", {}), ("!other", "$new", {}))  # fmt: skip
    chosen = choose_events([batch], stored_marks(_Cursor([("!r",)], stored), [batch]))
    aside = {(row["room_id"], row["event_id"]): row["reason"] for row in chosen.set_aside.to_pylist()}
    known = dict.fromkeys([("!r", "$here"), ("!r", "$still")], "event-known")
    elsewhere = dict.fromkeys([("!other", "$here"), ("!other", "$far")], "wrong-event-id")
    assert aside == known | elsewhere | {("!r", "$outlier"): "room-known"}
    assert ordered(batch, chosen) == ["$new"]
