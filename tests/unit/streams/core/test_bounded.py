"""Dictionaries with a bound: what was used last stays, and the weight is that of what is there."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from streams.core.bounded import BoundedDict, SharedCache


def test_the_first_goes_when_there_are_too_many():
    kept: BoundedDict[str, int] = BoundedDict(2)
    assert [kept.put(key, 0) for key in "abc"] == [0, 0, 1]
    assert list(kept) == ["b", "c"]


def test_what_is_put_again_is_the_last():
    kept: BoundedDict[str, int] = BoundedDict(2)
    for key in "abac":
        kept.put(key, 0)
    assert list(kept) == ["a", "c"]


def test_weights_are_of_what_is_there():
    chance = random.Random(3)
    kept: BoundedDict[int, str] = BoundedDict(30, len)
    for _ in range(3_000):
        key = chance.randrange(20)
        if chance.random() < 0.2:
            kept.pop(key, None)
        else:
            kept.put(key, "x" * chance.randrange(12))
        assert kept.weight == sum(map(len, kept.values())) <= 30
    kept.clear()
    assert kept.weight == 0


def test_what_is_too_heavy_alone_is_not_kept():
    kept: BoundedDict[str, str] = BoundedDict(3, len)
    kept.put("a", "xx")
    assert kept.put("b", "xxxx") == 2
    assert (len(kept), kept.weight) == (0, 0)


def test_what_was_read_last_stays():
    cache: SharedCache[str, int] = SharedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    cache.clear()
    assert cache.get("a") is None


def test_many_threads_may_use_it():
    cache: SharedCache[int, int] = SharedCache(50)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(5_000):
            number = chance.randrange(100)
            assert cache.get(number) in (None, number)
            cache.put(number, number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert cache._values.weight == len(cache._values) <= 50
