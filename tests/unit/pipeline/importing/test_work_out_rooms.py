"""Rooms in groups, what is made of one, and a room that contradicts itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.importing import work_out_rooms
from pipeline.importing.staged_room import EventsInMemory
from pipeline.importing.staging_tables import BROKEN, RESULT_TABLES
from tests.support.made_rooms import MadeRoom

LIMIT = work_out_rooms._EVENTS_PER_GROUP


@given(st.lists(st.integers(1, 2 * LIMIT), max_size=20))
def test_groups_keep_the_order_and_are_bounded(events):
    found = list(work_out_rooms._groups(((number, f"!{number}", count) for number, count in enumerate(events)), LIMIT))
    assert [number for group in found for number in group] == list(range(len(events)))
    assert all(len(group) == 1 or sum(events[number] for number in group) <= LIMIT for group in found)


@pytest.fixture
def written(monkeypatch):
    """What goes into the tables: (name, number of rows) of every COPY, and the rows by name."""
    copies, rows = [], {}

    def copy(_cursor, _job, table, found):
        copies.append((table.name, len(found)))
        rows.setdefault(table.name, []).extend(found)

    def copy_columns(cursor, job, table, columns):
        copy(cursor, job, table, list(zip(*columns, strict=True)))

    monkeypatch.setattr(work_out_rooms, "copy_rows", copy)
    monkeypatch.setattr(work_out_rooms, "copy_columns", copy_columns)
    return copies, rows


def work_out(room_no, events, chunk=1_000):
    results = work_out_rooms._Results(None, 1)
    staged = EventsInMemory(range(len(events)), [None] * len(events), events)
    work_out_rooms._work_out(room_no, staged, results, chunk)
    results.flush()


@pytest.mark.parametrize("twice", [False, True], ids=["another room", "an event twice"])
def test_a_room_that_contradicts_itself_is_put_aside_whole(written, twice):
    _, rows = written
    room = MadeRoom()
    room.events[1] = room.events[0] if twice else replace(room.events[1], room_id="!other:a.test")
    work_out(7, room.events)
    found = [(place, reason) for place, reason, *_ in rows[BROKEN.name]]
    assert found == [(0, work_out_rooms.CONTRADICTION), (1, work_out_rooms.CONTRADICTION)]
    (only,) = rows["result_room"]
    assert only[0] == 7 and len(only) == len(RESULT_TABLES[0].columns) and not any(only[1:])
    assert not any(rows.get(table.name) for table in RESULT_TABLES[1:])


def test_rows_fit_their_tables_and_name_the_room(written):
    _, rows = written
    room = MadeRoom()
    room.message()
    work_out(3, room.events)
    for table in RESULT_TABLES:
        assert all(row[0] == 3 and len(row) == len(table.columns) for row in rows[table.name]), table.name
    assert [row[1:3] for row in rows["result_event"]] == [(0, 0), (1, 1), (2, 2)]


def test_rows_are_written_some_at_a_time(written, monkeypatch):
    copies, rows = written
    monkeypatch.setattr(work_out_rooms, "_ROWS_PER_COPY", 4)
    room = MadeRoom()
    for _ in range(9):
        room.message()
    work_out(3, room.events, chunk=2)
    assert [count for name, count in copies if name == "result_event"] == [4, 4, 3]
    assert [row[1] for row in rows["result_event"]] == list(range(11))
