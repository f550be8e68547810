"""Every shipped room by chunks: the rows are those of the whole, in the given order and against it."""

from __future__ import annotations

import pytest

from tests.oracle.answers import history, parsed
from tests.support.room_data import ROOM_NAMES
from tests.unit.events.history.test_chunked_walk import assert_chunks_make_no_difference


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_chunks_make_no_difference(room):
    whole = history(room)
    assert_chunks_make_no_difference(parsed(room), [1_000] if len(whole.events) > 5_000 else [1, 7, 100], whole)


@pytest.mark.parametrize("room", [name for name in ROOM_NAMES if name != "large_v10"])
def test_chunks_make_no_difference_to_a_room_that_is_out_of_order(room):
    assert_chunks_make_no_difference(parsed(room)[::-1], [7, 100])
