"""Who is woken by what: by their user, by their rooms, each once, and no more than may wait."""

from __future__ import annotations

import pytest

from events.notifier.waiters import RoutedWaiter, RoutedWaiters
from tests.support.growth import growth


def waiter(user: str, *rooms: str) -> RoutedWaiter:
    return RoutedWaiter(user, frozenset(rooms), object())


def filled(*waiters: RoutedWaiter, limit: int = 100) -> RoutedWaiters:
    found = RoutedWaiters(limit)
    for one in waiters:
        assert found.add(one)
    return found


def test_a_user_is_woken_by_its_own_changes():
    alice, bob = waiter("@alice:x"), waiter("@bob:x")
    waiters = filled(alice, bob)
    assert waiters.remove_concerned(["@alice:x"], set()) == [alice]
    assert list(waiters) == [bob]
    assert alice not in waiters
    assert bob in waiters


def test_all_callers_of_a_user_are_woken():
    phone, desk = waiter("@alice:x"), waiter("@alice:x")
    assert filled(phone, desk).remove_concerned(["@alice:x"], set()) == [phone, desk]


def test_a_room_wakes_its_members():
    alice, bob, eve = waiter("@alice:x", "!1", "!2"), waiter("@bob:x", "!2"), waiter("@eve:x", "!3")
    waiters = filled(alice, bob, eve)
    assert waiters.remove_concerned([], {"!2", "!9"}) == [alice, bob]
    assert list(waiters) == [eve]


def test_who_is_concerned_twice_is_woken_once():
    alice = waiter("@alice:x", "!1")
    assert filled(alice).remove_concerned(["@alice:x", "@alice:x"], {"!1"}) == [alice]


def test_who_was_woken_waits_no_more():
    alice = waiter("@alice:x", "!1")
    waiters = filled(alice)
    waiters.pop_all()
    assert waiters.remove_concerned(["@alice:x"], {"!1"}) == []
    assert len(waiters) == 0


def test_no_more_wait_than_may():
    waiters = filled(waiter("@a:x"), waiter("@b:x"), limit=2)
    assert not waiters.add(waiter("@c:x"))
    assert len(waiters) == 2


def test_who_leaves_makes_room_and_may_leave_twice():
    alice = waiter("@alice:x")
    waiters = filled(alice, limit=1)
    waiters.leave(alice)
    waiters.leave(alice)
    assert len(waiters) == 0
    assert waiters.add(waiter("@bob:x"))


@pytest.mark.speed
def test_a_change_of_a_room_is_cheap_among_thousands_in_thousands_of_rooms():
    """It does not matter in how many rooms they are."""

    def make(rooms):
        joined = frozenset(f"!{n}" for n in range(rooms))
        waiters = filled(*(RoutedWaiter(f"@{n}:x", joined, None) for n in range(1000)), limit=1000)

        def take():
            for _ in range(20):
                assert waiters.remove_concerned(["@none:x"], {"!other"}) == []

        return take

    assert growth(make, 50, times=20) < 5
