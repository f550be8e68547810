"""What a row of a stream says about cached values (pure): which caches exist here, and which of their keys to drop.

A stream declares which caches its rows drop (``caches=``), as a mapping from the name of a cache to the columns that are
its key, or to a function of the row. The stream ``caches`` names cache and keys in the row itself. A *special* name stands
for several caches: ``cs_cache_fake`` for all that depend on a room's current state, and its keys are a room and users
whose membership changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from streams.core.cache_store import CacheStore, Key

__all__ = [
    "ROOM_STATE",
    "ROOM_STATE_USERS",
    "Drop",
    "Drops",
    "KeyRule",
    "StateChanges",
    "StateRule",
    "any_depends_on_room_state",
    "apply_drops",
    "depends_on_room_state",
    "drops_nothing",
    "drops_of_caches_row",
    "drops_of_columns",
    "drops_of_room_state",
    "register",
    "room_state_keys",
    "spoil_begun",
    "stores",
]

#: The special name of all caches that depend on the current state of a room.
ROOM_STATE = "cs_cache_fake"
#: Users that one row of it names at most.
ROOM_STATE_USERS = 50


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop that key of that cache; without a key the whole cache."""

    cache: str
    key: Key | None


#: What a row drops.
Drops = Callable[[Sequence[Any]], Iterable[Drop]]
#: The columns that are the key, or a function from the row to keys (None: the whole cache).
KeyRule = Sequence[str] | Callable[[Sequence[Any]], Iterable[Key] | None]
#: From a room and the users whose membership changed to the keys that depend on them (None: the whole cache).
StateRule = Callable[[str, Sequence[str]], Iterable[Key] | None]


class StateChanges(Protocol):
    """The rooms whose current state rows of a stream change."""

    def may_change(self, row: Sequence[Any]) -> bool:
        """Whether a row can change the state of a room; only such rows are given to ``changed``."""

    def changed(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> Iterable[tuple[str, Sequence[str]]]:
        """Rooms, each with the users whose membership changed. ``cursor`` sees the rows as they are stored."""


def drops_nothing(row: Sequence[Any]) -> Iterable[Drop]:
    """No cached value depends on the rows."""
    return ()


#: The caches of this process, by name.
stores: dict[str, CacheStore] = {}
_state_rules: dict[str, StateRule] = {}


def register(name: str, store: CacheStore) -> None:
    """A cache of that name exists in this process; raises ``ValueError`` when there is one already."""
    if name in stores:
        raise ValueError(f"There are two caches named {name!r}: give each cached function a name of its own.")
    stores[name] = store


def depends_on_room_state(cache: str, rule: StateRule) -> None:
    """That cache's values depend on rooms' current state."""
    _state_rules[cache] = rule


def any_depends_on_room_state() -> bool:
    """Whether a cache of this process depends on rooms' current state."""
    return bool(_state_rules)


def drops_of_columns(names: Sequence[str], caches: Mapping[str, KeyRule]) -> Drops:
    """What a row of these columns drops, by the declaration of its stream; raises ``ValueError`` for an unknown column."""
    rules = {cache: _rule(names, rule) for cache, rule in caches.items()}

    def drops(row: Sequence[Any]) -> Iterable[Drop]:
        for cache, rule in rules.items():
            keys = rule(row)
            if keys is None:
                yield Drop(cache, None)
            else:
                yield from (Drop(cache, tuple(key)) for key in keys)

    return drops


def _rule(names: Sequence[str], rule: KeyRule) -> Callable[[Sequence[Any]], Iterable[Key] | None]:
    if callable(rule):
        return rule
    if unknown := [name for name in rule if name not in names]:
        raise ValueError(f"The row has no column {', '.join(unknown)}; it is made of {', '.join(names)}.")
    places = [names.index(name) for name in rule]
    return lambda row: [tuple(str(row[place]) for place in places)]


def drops_of_caches_row(row: Sequence[Any]) -> Iterable[Drop]:
    """What a row ``[cache_name, keys or null, time]`` drops, special names expanded."""
    name, keys = row[0], row[1]
    if name != ROOM_STATE:
        yield Drop(name, None if keys is None else tuple(keys))
        return
    if keys:
        yield from drops_of_room_state(keys[0], keys[1:])
    else:
        yield from (Drop(cache, None) for cache in _state_rules)


def drops_of_room_state(room_id: str, user_ids: Sequence[str]) -> Iterable[Drop]:
    """What drops when the state of the room changed, and the membership of these users."""
    for cache, rule in _state_rules.items():
        found = rule(room_id, user_ids)
        if found is None:
            yield Drop(cache, None)
        else:
            yield from (Drop(cache, tuple(key)) for key in found)


def room_state_keys(room_id: str, user_ids: Iterable[str]) -> list[list[str]]:
    """The keys of the rows that say: the state of the room changed, and the membership of these users."""
    users = list(user_ids)
    return [
        [room_id, *users[first : first + ROOM_STATE_USERS]] for first in range(0, max(len(users), 1), ROOM_STATE_USERS)
    ]


def spoil_begun(drops: Iterable[Drop], owner: object) -> None:
    """``owner`` makes these values old: what it has begun to compute of them is of before, and not to be kept at its end."""
    for drop in drops:
        if (store := stores.get(drop.cache)) is not None:
            store.spoil(drop.key, owner)


def apply_drops(drops: Iterable[Drop], by: object = None) -> None:
    """Drop them, where the cache is one of this process; ``by`` keeps what it put there itself."""
    for drop in drops:
        store = stores.get(drop.cache)
        if store is None:
            continue
        if drop.key is None:
            store.drop_all(by)
        else:
            store.drop(drop.key, by)
