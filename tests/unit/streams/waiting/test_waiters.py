"""Who waits for which position: woken when it is reached and not before, and forgotten when it gave up."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from streams.core.tokens import VectorToken
from streams.waiting.waiters import Waiter, WaitingRoom, has_reached


@dataclass
class Positions:
    linear: int = 10
    writers: dict[str, int] = field(default_factory=dict)

    def position_of(self, writer: str) -> int:
        return max(self.writers.get(writer, 0), self.linear)


def waiter(base: int, **entries: int) -> Waiter:
    return Waiter("caches", VectorToken(base, entries), None)


def add(room: WaitingRoom, seen: Positions, *tokens: Waiter) -> list[bool]:
    return [room.add(token, seen) for token in tokens]


def test_what_is_reached_needs_no_waiting():
    room = WaitingRoom()
    assert add(room, Positions(10, {"a": 12}), waiter(10), waiter(9, a=12), waiter(11)) == [False, False, True]
    assert len(room) == 1


def test_each_is_woken_by_its_own_position():
    room, seen = WaitingRoom(), Positions()
    first, second = waiter(12), waiter(14)
    add(room, seen, second, first)
    seen.linear = 13
    assert room.moved("caches", seen) == [first]
    seen.linear = 14
    assert room.moved("caches", seen) == [second]
    assert room.streams == []


def test_vector_is_reached_when_the_base_and_every_entry_are():
    room, seen = WaitingRoom(), Positions()
    both = waiter(11, a=20, b=30)
    add(room, seen, both)
    seen.writers = {"a": 25, "b": 29}
    assert room.moved("caches", seen) == [], "the base is missing"
    seen.linear = 11
    assert room.moved("caches", seen) == [], "b is missing"
    seen.writers["b"] = 30
    assert room.moved("caches", seen) == [both]


def test_linear_position_covers_every_writer():
    room, seen = WaitingRoom(), Positions()
    silent = waiter(11, gone=15)
    add(room, seen, silent)
    seen.linear = 15
    assert room.moved("caches", seen) == [silent]


def test_streams_do_not_wake_each_other():
    room, seen = WaitingRoom(), Positions()
    add(room, seen, waiter(12))
    assert room.moved("events", Positions(99)) == []
    assert len(room) == 1


def test_one_that_gave_up_is_not_woken():
    room, seen = WaitingRoom(), Positions()
    gone = waiter(12)
    add(room, seen, gone)
    room.leave(gone)
    room.leave(gone)
    assert len(room) == 0
    assert room.moved("caches", Positions(20)) == []


def test_many_that_gave_up_take_no_memory():
    """Each waits for a position that never comes, and gives up: nothing may pile up."""
    room, seen = WaitingRoom(), Positions()
    stays = waiter(10**9)
    room.add(stays, seen)
    for number in range(5_000):
        given_up = waiter(10**6 + number) if number % 2 else waiter(10, a=10**6)
        room.add(given_up, seen)
        room.leave(given_up)
    kept = sum(len(heap) for queues in room._streams.values() for heap in queues.heaps())
    assert kept < 200
    assert len(room) == 1


def test_everybody_is_given_back_when_it_ends():
    room, seen = WaitingRoom(), Positions()
    some = [waiter(12), waiter(10, a=30)]
    add(room, seen, *some)
    assert set(room.everybody()) == set(some)
    assert len(room) == 0


def test_any_order_of_moves_wakes_everybody_exactly_once_and_in_time():
    chance = random.Random(7)
    room, seen = WaitingRoom(), Positions(0, {"a": 0, "b": 0})
    open_ones: set[Waiter] = set()
    for _ in range(3_000):
        base = seen.linear + chance.randrange(5)
        one = waiter(base, **{w: base + chance.randrange(1, 9) for w in "ab" if chance.random() < 0.5})
        if room.add(one, seen):
            open_ones.add(one)
        else:
            assert has_reached(seen, one.token)
        seen.writers[chance.choice("ab")] += chance.randrange(4)
        seen.linear = max(seen.linear, min(seen.writers.values()))
        woken = set(room.moved("caches", seen))
        assert woken == {one for one in open_ones if has_reached(seen, one.token)}
        open_ones -= woken


def test_a_move_looks_only_at_those_whose_turn_it_is():
    room, seen = WaitingRoom(), Positions()
    for number in range(10_000):
        room.add(waiter(1_000 + number), seen)
    begun = time.process_time()
    for step in range(1_000):
        seen.linear = 11 + step // 2
        room.moved("caches", seen)
    assert time.process_time() - begun < 0.5
