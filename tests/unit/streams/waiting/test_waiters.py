"""Who waits for which position: woken when it is reached and not before, and forgotten when it gave up."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from streams.core.tokens import VectorToken
from streams.waiting.waiters import TokenWaiter, Waiters, missing
from tests.support.growth import growth


@dataclass
class Positions:
    linear: int = 10
    writers: dict[str, int] = field(default_factory=dict)

    def position_of(self, writer: str) -> int:
        return max(self.writers.get(writer, 0), self.linear)


def waiter(base: int, **entries: int) -> TokenWaiter:
    return TokenWaiter("caches", VectorToken(base, entries), None)


class WaitingRoom:
    """Waiters for tokens, as ``streams.waiting.wait`` has them: by stream, and writer or None for the linear position."""

    def __init__(self, seen: Positions | None = None) -> None:
        self.seen = seen or Positions()
        self.waiters: Waiters[TokenWaiter, tuple[str, str | None]] = Waiters(self._next_place)

    def _next_place(self, one: TokenWaiter) -> tuple[tuple[str, str | None], int] | None:
        found = missing(self.seen, one.token)
        return None if found is None else ((one.stream, found[0]), found[1])

    def add(self, *tokens: TokenWaiter) -> list[bool]:
        return [self.waiters.add(token) for token in tokens]

    def moved(self, stream: str) -> list[TokenWaiter]:
        """Those of the stream that need not wait any more."""
        reached: list[TokenWaiter] = []
        for name, writer in self.waiters.keys:
            if name == stream:
                at = self.seen.linear if writer is None else self.seen.position_of(writer)
                reached += [one for one in self.waiters.pop((name, writer), at) if not self.waiters.add(one)]
        return reached


def test_what_is_reached_needs_no_waiting():
    room = WaitingRoom(Positions(10, {"a": 12}))
    assert room.add(waiter(10), waiter(9, a=12), waiter(11)) == [False, False, True]
    assert len(room.waiters) == 1


def test_each_is_woken_by_its_own_position():
    seen = Positions()
    room = WaitingRoom(seen)
    first, second = waiter(12), waiter(14)
    room.add(second, first)
    seen.linear = 13
    assert room.moved("caches") == [first]
    seen.linear = 14
    assert room.moved("caches") == [second]
    assert room.waiters.keys == []


def test_vector_is_reached_when_the_base_and_every_entry_are():
    seen = Positions()
    room = WaitingRoom(seen)
    both = waiter(11, a=20, b=30)
    room.add(both)
    seen.writers = {"a": 25, "b": 29}
    assert room.moved("caches") == [], "the base is missing"
    seen.linear = 11
    assert room.moved("caches") == [], "b is missing"
    seen.writers["b"] = 30
    assert room.moved("caches") == [both]


def test_linear_position_covers_every_writer():
    seen = Positions()
    room = WaitingRoom(seen)
    silent = waiter(11, gone=15)
    room.add(silent)
    seen.linear = 15
    assert room.moved("caches") == [silent]


def test_streams_do_not_wake_each_other():
    seen = Positions()
    room = WaitingRoom(seen)
    room.add(waiter(12))
    seen.linear = 99
    assert room.moved("events") == []
    assert len(room.waiters) == 1


def test_one_that_gave_up_is_not_woken():
    seen = Positions()
    room = WaitingRoom(seen)
    gone = waiter(12)
    room.add(gone)
    room.waiters.leave(gone)
    room.waiters.leave(gone)
    assert len(room.waiters) == 0
    seen.linear = 20
    assert room.moved("caches") == []


def test_many_that_gave_up_take_no_memory():
    """Each waits for a position that never comes, and gives up: nothing may pile up."""
    seen = Positions()
    room = WaitingRoom(seen)
    stays = waiter(10**9)
    room.add(stays)
    for number in range(5_000):
        given_up = waiter(10**6 + number) if number % 2 else waiter(10, a=10**6)
        room.add(given_up)
        room.waiters.leave(given_up)
    kept = sum(map(len, room.waiters._heaps.values()))
    assert kept < 200
    assert len(room.waiters) == 1


def test_everybody_is_given_back_when_it_ends():
    seen = Positions()
    room = WaitingRoom(seen)
    some = [waiter(12), waiter(10, a=30)]
    room.add(*some)
    assert set(room.waiters.pop_all()) == set(some)
    assert len(room.waiters) == 0


def test_any_order_of_moves_wakes_everybody_exactly_once_and_in_time():
    chance = random.Random(7)
    seen = Positions(0, {"a": 0, "b": 0})
    room = WaitingRoom(seen)
    open_ones: set[TokenWaiter] = set()
    for _ in range(3_000):
        base = seen.linear + chance.randrange(5)
        one = waiter(base, **{w: base + chance.randrange(1, 9) for w in "ab" if chance.random() < 0.5})
        if room.add(one) == [True]:
            open_ones.add(one)
        else:
            assert missing(seen, one.token) is None
        seen.writers[chance.choice("ab")] += chance.randrange(4)
        seen.linear = max(seen.linear, min(seen.writers.values()))
        woken = set(room.moved("caches"))
        assert woken == {one for one in open_ones if missing(seen, one.token) is None}
        open_ones -= woken


@pytest.mark.speed
def test_a_move_looks_only_at_those_whose_turn_it_is():
    def make(waiting):
        seen = Positions()
        room = WaitingRoom(seen)
        for number in range(waiting):
            room.add(waiter(1_000 + number))

        def move():
            for step in range(500):
                seen.linear = 11 + step // 2
                room.moved("caches")

        return move

    assert growth(make, 500, times=20) < 5
