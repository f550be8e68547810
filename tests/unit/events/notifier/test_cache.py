"""Rooms of users: bounded by users and by rooms, and never older than a change of membership."""

from __future__ import annotations

from events.notifier.cache import ROOMS_PER_USER, rooms_cache
from streams.core.cache_store import MISSING, CacheStore


def rooms(store: CacheStore) -> int:
    return sum(map(len, store._values.values()))


def put(store: CacheStore, user: str, number: int) -> frozenset[str]:
    theirs = frozenset(f"!{n}" for n in range(number))
    assert store.finish(store.start((user,)), theirs)
    return theirs


def test_rooms_are_kept():
    store = rooms_cache(10)
    theirs = put(store, "@a:x", 3)
    assert store.get(("@a:x",)) is theirs
    assert rooms(store) == 3


def test_users_are_bounded():
    store = rooms_cache(2)
    for user in ("@a:x", "@b:x", "@c:x"):
        put(store, user, 1)
    assert store.get(("@a:x",)) is MISSING
    assert len(store) == 2


def test_rooms_are_bounded():
    store = rooms_cache(10)
    for number in range(10):
        put(store, f"@{number}:x", 4 * ROOMS_PER_USER)
        assert rooms(store) <= 10 * ROOMS_PER_USER
    assert store.get(("@9:x",)) is not MISSING
    assert store.get(("@0:x",)) is MISSING


def test_users_that_are_read_again_take_no_more_room():
    store = rooms_cache(10)
    put(store, "@quiet:x", 1)
    for _ in range(100):
        store.drop(("@a:x",))
        put(store, "@a:x", 2 * ROOMS_PER_USER)
        store.get(("@quiet:x",))
    assert store.get(("@quiet:x",)) is not MISSING
    assert rooms(store) == 2 * ROOMS_PER_USER + 1


def test_a_user_with_more_rooms_than_fit_is_not_kept_for_ever():
    store = rooms_cache(2)
    store.finish(store.start(("@a:x",)), frozenset(map(str, range(3 * ROOMS_PER_USER))))
    assert rooms(store) == 0


def test_rooms_of_before_a_change_are_not_kept():
    store = rooms_cache(10)
    ticket = store.start(("@a:x",))
    store.drop(("@a:x",))
    assert not store.finish(ticket, frozenset({"!old"}))
    assert store.get(("@a:x",)) is MISSING
