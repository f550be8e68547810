"""Rooms in groups, and a room that contradicts itself."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pipeline.stage_rooms import _EVENTS_PER_GROUP, CONTRADICTION, _groups, _Staged, _work_out
from pipeline.staging import RESULT_TABLES
from tests.made_rooms import MadeRoom


@given(st.lists(st.integers(1, 2 * _EVENTS_PER_GROUP), max_size=20))
def test_groups_keep_the_order_and_are_bounded(events):
    found = list(_groups((number, f"!{number}", count) for number, count in enumerate(events)))
    assert [number for group in found for number in group] == list(range(len(events)))
    assert all(len(group) == 1 or sum(events[number] for number in group) <= _EVENTS_PER_GROUP for group in found)


def staged(events):
    return [_Staged(place, None, event) for place, event in enumerate(events)]


def test_a_room_that_contradicts_itself_is_put_aside_whole():
    room = MadeRoom()
    room.events[1] = replace(room.events[1], room_id="!other:a.test")
    broken = []
    rows = _work_out(7, staged(room.events), broken)
    assert [(place, reason) for place, reason, *_ in broken] == [(0, CONTRADICTION), (1, CONTRADICTION)]
    assert rows[0][0][0] == 7 and len(rows[0][0]) == len(RESULT_TABLES[0].columns) and not any(rows[1:])


def test_rows_fit_their_tables_and_name_the_room():
    room = MadeRoom()
    room.message()
    for table, rows in zip(RESULT_TABLES, _work_out(3, staged(room.events), []), strict=True):
        assert all(row[0] == 3 and len(row) == len(table.columns) for row in rows), table.name
