"""Which rooms are loaded together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.importing.load_rooms import LoadedRoom, batches


def rooms_of(events):
    return [LoadedRoom(number, f"!{number}", count, 0) for number, count in enumerate(events)]


@given(st.lists(st.integers(1, 30)), st.integers(1, 40))
def test_batches_keep_the_order_and_are_bounded(events, limit):
    found = list(batches(rooms_of(events), limit))
    assert [room for batch in found for room in batch] == rooms_of(events)
    assert all(len(batch) == 1 or sum(room.events for room in batch) <= limit for batch in found)


def test_a_room_beyond_the_limit_is_loaded_alone():
    found = batches(rooms_of([2, 100, 3, 4]), 10)
    assert [[room.events for room in batch] for batch in found] == [[2], [100], [3, 4]]
