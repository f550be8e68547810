"""Up to where the memory of a stream shows: after its rows were fed, and by what the slowest writer has announced."""

from __future__ import annotations

from events.notifier.routing import Target, room_in
from events.notifier.stream_cache import ALL_WRITERS, RowRange, StreamCache
from streams.core.tokens import VectorToken


def stream(**positions: int) -> StreamCache:
    found = StreamCache("receipts", room_in(0), 100)
    found.positions, found.fed = dict(positions), dict(positions)
    found.reset({})
    return found


def test_it_begins_at_the_linear_position_with_those_ahead():
    assert stream(a=5, b=9).token == VectorToken.of(5, {"b": 9})


def test_a_position_shows_after_its_rows_were_fed():
    found = stream(a=5, b=5)
    lane = found.unread_range("a", 8)
    assert lane == RowRange("receipts", "a", 5, 8)
    found.positions["a"] = 8
    assert found.token == VectorToken(5)
    found.advance([lane])
    assert found.token == VectorToken.of(5, {"a": 8})


def test_the_base_follows_the_slowest():
    found = stream(a=5, b=5)
    for writer, upto in (("a", 8), ("b", 7)):
        found.positions[writer] = upto
        found.advance([RowRange("receipts", writer, 5, upto)])
    assert found.token == VectorToken.of(7, {"a": 8})


def test_own_facts_show_before_they_are_announced_but_move_no_base():
    """Another writer may have joined whose facts lie below, and of whom this process has not heard."""
    found = stream(a=5)
    found.advance([RowRange("receipts", "a", 5, 9)])
    assert found.token == VectorToken.of(5, {"a": 9})
    found.positions["a"] = 9
    found.advance([])
    assert found.token == VectorToken(9)


def test_a_writer_that_comes_is_fed_from_the_base_on():
    found = stream(a=5)
    found.positions["b"] = 5
    assert found.unread_range("b", 5) is None
    found.advance([])
    assert found.token == VectorToken(5)
    assert found.unread_range("b", 7) == RowRange("receipts", "b", 5, 7)


def test_a_writer_that_retires_holds_nothing_back():
    found = stream(a=5, b=9)
    del found.positions["a"]
    found.advance([])
    assert found.token == VectorToken(9)


def test_without_writers_everything_fed_is_complete():
    found = stream(a=5, b=9)
    found.positions = {}
    found.advance([])
    assert found.token == VectorToken(9)


def test_the_base_never_falls():
    found = stream(a=9)
    found.positions["b"] = 4
    found.advance([])
    assert found.token == VectorToken(9)


def test_rows_are_remembered_by_writer():
    found = stream(a=5, b=5)
    assert found.add_row("b", 7, ["!r"]) == [(Target.ROOM, "!r")]
    assert found.changes[Target.ROOM].changed_since(VectorToken(5)) == {"!r"}
    assert found.changes[Target.ROOM].changed_since(VectorToken.of(5, {"b": 7})) == frozenset()


def test_a_stream_in_memory_is_one_lane():
    found = StreamCache("typing", room_in(0), 100, generation=3)
    found.fed = {ALL_WRITERS: 4}
    found.reset({})
    found.add_row("whoever", 6, ["!r"])
    found.advance([RowRange("typing", ALL_WRITERS, 4, 6)])
    assert found.at == (VectorToken(6), 3)
    assert found.changes[Target.ROOM].changed_since(VectorToken(5)) == {"!r"}
