"""How rooms are divided into packs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.importing.load_rooms import pack_rooms
from pipeline.importing.plan import PlannedRoom


def sizes(packs):
    return [[room.events for room in pack] for pack in packs]


def rooms_of(*events):
    return [PlannedRoom(number, f"!{number}", count) for number, count in enumerate(events)]


def test_the_largest_room_is_begun_first_and_alone():
    assert sizes(pack_rooms(rooms_of(3, 50, 4, 3), events=10)) == [[50], [4, 3, 3]]


def test_no_rooms_make_no_tasks():
    assert pack_rooms([]) == []


@given(st.lists(st.integers(1, 30)), st.integers(1, 20))
def test_every_room_is_in_one_task_and_tasks_are_bounded(events, limit):
    packs = pack_rooms(rooms_of(*events), limit)
    assert sorted(count for pack in sizes(packs) for count in pack) == sorted(events)
    assert all(len(pack) == 1 or sum(pack) <= limit for pack in sizes(packs))
