"""What rows say about cached values."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from streams.core import invalidation
from streams.core.cache_store import MISSING, CacheStore
from streams.core.invalidation import Invalidation, drops_of_caches_row, drops_of_columns, room_state_keys


@pytest.fixture
def store(monkeypatch) -> Iterator[CacheStore]:
    monkeypatch.setattr(invalidation, "_state_rules", {})
    with patch.dict(invalidation.stores, clear=True):
        made = CacheStore(10)
        invalidation.register("here", made)
        yield made


def test_row_of_caches_names_a_key_or_the_whole_cache():
    assert list(drops_of_caches_row(["get_user", ["@a:x"], 1])) == [Invalidation("get_user", ("@a:x",))]
    assert list(drops_of_caches_row(["get_user", None, 1])) == [Invalidation("get_user", None)]
    assert list(drops_of_caches_row(["no_arguments", [], 1])) == [Invalidation("no_arguments", ())]


def test_special_name_stands_for_all_that_depends_on_the_state(store):
    invalidation.depends_on_room_state("users_in_room", lambda room, users: [(room,)])
    invalidation.depends_on_room_state("rooms_of_user", lambda room, users: [(user,) for user in users])
    invalidation.depends_on_room_state("everything", lambda room, users: None)
    assert list(drops_of_caches_row(["cs_cache_fake", ["!r:x", "@a:x", "@b:x"], 1])) == [
        Invalidation("users_in_room", ("!r:x",)),
        Invalidation("rooms_of_user", ("@a:x",)),
        Invalidation("rooms_of_user", ("@b:x",)),
        Invalidation("everything", None),
    ]
    assert {drop.key for drop in drops_of_caches_row(["cs_cache_fake", None, 1])} == {None}


@pytest.mark.parametrize(("users", "sizes"), [(0, [1]), (1, [2]), (50, [51]), (51, [51, 2]), (120, [51, 51, 21])])
def test_at_most_fifty_users_a_row(users, sizes):
    keys = room_state_keys("!r:x", [f"@{n}:x" for n in range(users)])
    assert [len(row) for row in keys] == sizes
    assert {row[0] for row in keys} == {"!r:x"}
    assert [user for row in keys for user in row[1:]] == [f"@{n}:x" for n in range(users)]


def test_columns_are_the_key():
    drops = drops_of_columns({"a": 0, "b": 1, "n": 2}, {"one": ["b", "n"], "none": [], "all": lambda row: None})
    assert list(drops(["x", "y", 7])) == [
        Invalidation("one", ("y", "7")),
        Invalidation("none", ()),
        Invalidation("all", None),
    ]


def test_fields_are_the_key():
    drops = drops_of_columns({"a": "a", "b": "b"}, {"one": ["b"]})
    assert list(drops({"a": "x", "b": 7, "@version": 1})) == [Invalidation("one", ("7",))]


def test_function_of_the_row_gives_several_keys():
    drops = drops_of_columns({"a": 0}, {"one": lambda row: [(row[0],), (row[0], "more")]})
    assert list(drops(["x"])) == [Invalidation("one", ("x",)), Invalidation("one", ("x", "more"))]


def test_unknown_column_is_refused_by_name():
    with pytest.raises(ValueError, match="no column order; it is made of a, b"):
        drops_of_columns({"a": 0, "b": 1}, {"one": ["order"]})


def test_drops_of_caches_that_are_not_here_do_nothing(store):
    store.finish(store.begin(("k",)), "v")
    invalidation.apply_invalidations([Invalidation("elsewhere", ("k",)), Invalidation("elsewhere", None)])
    assert store.get(("k",)) == "v"
    invalidation.apply_invalidations([Invalidation("here", ("k",))])
    assert store.get(("k",)) is MISSING


def test_name_that_is_taken_is_refused(store):
    with pytest.raises(ValueError, match="two caches named 'here'"):
        invalidation.register("here", store)
