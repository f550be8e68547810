"""Values that are kept: bounded, and never of before an invalidation."""

from __future__ import annotations

import threading

import pytest

from streams.core.cache_store import MISSING, CacheStore


@pytest.fixture
def store() -> CacheStore:
    return CacheStore(limit=3)


def put(store: CacheStore, *key: str, value: object = "v") -> None:
    assert store.finish(store.start(key), value)


def test_value_is_kept(store):
    assert store.get(("a",)) is MISSING
    put(store, "a")
    assert store.get(("a",)) == "v"


def test_none_is_a_value(store):
    put(store, "a", value=None)
    assert store.get(("a",)) is None


def test_least_recently_used_goes_first(store):
    for key in "abc":
        put(store, key)
    store.get(("a",))
    put(store, "d")
    assert [store.get((key,)) is MISSING for key in "abcd"] == [False, True, False, False]
    assert len(store) == 3


def test_value_of_before_a_drop_is_not_kept(store):
    ticket = store.start(("a",))
    store.drop(("a",))
    assert not store.finish(ticket, "old")
    assert store.get(("a",)) is MISSING


def test_value_of_before_dropping_all_is_not_kept(store):
    ticket = store.start(("a",))
    store.drop_all()
    assert not store.finish(ticket, "old")


def test_drop_of_another_key_spoils_nothing(store):
    ticket = store.start(("a",))
    store.drop(("b",))
    assert store.finish(ticket, "v")


def test_computation_that_began_after_the_drop_is_kept(store):
    old = store.start(("a",))
    store.drop(("a",))
    new = store.start(("a",))
    assert store.finish(new, "new")
    assert not store.finish(old, "old")
    assert store.get(("a",)) == "new"


def test_abandoned_and_finished_tickets_leave_nothing_behind(store):
    store.abandon(store.start(("a",)))
    ticket = store.start(("b",))
    store.finish(ticket, "v")
    store.abandon(ticket)
    assert store._tickets == {}


def test_threads_never_see_a_value_of_before_the_last_drop():
    """A truth that changes, readers that keep what they computed, and after each change a drop: no reader falls back."""
    store, truth, errors = CacheStore(10), [0], []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            floor = truth[1] if len(truth) > 1 else 0
            value = store.get(("k",))
            if value is MISSING:
                ticket = store.start(("k",))
                value = truth[0]
                store.finish(ticket, value)
            if value < floor:
                errors.append((value, floor))

    truth.append(0)
    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, 2000):
        truth[0] = number
        store.drop(("k",))
        truth[1] = number  # from now on nobody may see less
    done.set()
    for reader in readers:
        reader.join()
    assert errors == []
