"""Maps rows of streams to invalidations of cached values (pure), and applies the invalidations to this process's caches.

A stream declares which caches its rows invalidate (``caches=``). The declaration maps the name of a cache to the
columns that form its key, or to a function of the row. Rows of the stream ``caches`` contain the name of a cache and
its keys. The *special* name ``cs_cache_fake`` stands for all caches that depend on a room's current state. The keys of
a row with this name are a room and the users whose membership changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from streams.core.cache_store import CacheStore, Key

__all__ = [
    "ROOM_STATE",
    "ROOM_STATE_USERS",
    "Drops",
    "Invalidation",
    "KeyRule",
    "StateChanges",
    "StateRule",
    "any_depends_on_room_state",
    "apply_invalidations",
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
#: Most users that one row with the name ``ROOM_STATE`` has.
ROOM_STATE_USERS = 50


@dataclass(frozen=True, slots=True)
class Invalidation:
    """An invalidation of one key of a cache, or of the whole cache if ``key`` is None."""

    cache: str
    key: Key | None


#: A function from a row to its invalidations.
Drops = Callable[[Sequence[Any]], Iterable[Invalidation]]
#: The columns that form the key, or a function from the row to keys. If the function returns None, the whole cache is
#: invalidated.
KeyRule = Sequence[str] | Callable[[Sequence[Any]], Iterable[Key] | None]
#: A function from a room and the users whose membership changed to the keys that depend on them. None: the whole cache.
StateRule = Callable[[str, Sequence[str]], Iterable[Key] | None]


class StateChanges(Protocol):
    """A rule that finds the rooms whose current state was changed by rows of a stream."""

    def may_change(self, row: Sequence[Any]) -> bool:
        """Returns true if the row can change the state of a room. Only such rows are given to ``changed``."""

    def changed(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> Iterable[tuple[str, Sequence[str]]]:
        """Returns the rooms whose state changed, each with the users whose membership changed.

        ``cursor`` reads the database, which already contains the rows.
        """


def drops_nothing(row: Sequence[Any]) -> Iterable[Invalidation]:
    """Returns no invalidations: the rule of a stream that no cached value depends on."""
    return ()


#: The caches of this process, by name.
stores: dict[str, CacheStore] = {}
_state_rules: dict[str, StateRule] = {}


def register(name: str, store: CacheStore) -> None:
    """Registers a cache of this process. Raises ``ValueError`` if another cache has this name."""
    if name in stores:
        raise ValueError(f"There are two caches named {name!r}: give each cached function a name of its own.")
    stores[name] = store


def depends_on_room_state(cache: str, rule: StateRule) -> None:
    """Registers a rule for a cache whose values depend on rooms' current state."""
    _state_rules[cache] = rule


def any_depends_on_room_state() -> bool:
    """Returns true if a cache of this process depends on rooms' current state."""
    return bool(_state_rules)


def drops_of_columns(places: Mapping[str, Any], caches: Mapping[str, KeyRule]) -> Drops:
    """Returns the function that maps a row to its invalidations.

    ``places`` maps the names of columns to their places in the row: numbers for a list, keys for a JSON object.
    ``caches`` is the mapping that the stream declares. Raises ``ValueError`` if ``caches`` names an unknown column.
    """
    rules = {cache: _rule(places, rule) for cache, rule in caches.items()}

    def drops(row: Sequence[Any]) -> Iterable[Invalidation]:
        for cache, rule in rules.items():
            keys = rule(row)
            if keys is None:
                yield Invalidation(cache, None)
            else:
                yield from (Invalidation(cache, tuple(key)) for key in keys)

    return drops


def _rule(places: Mapping[str, Any], rule: KeyRule) -> Callable[[Sequence[Any]], Iterable[Key] | None]:
    if callable(rule):
        return rule
    if unknown := [name for name in rule if name not in places]:
        raise ValueError(f"The row has no column {', '.join(unknown)}; it is made of {', '.join(places)}.")
    own = [places[name] for name in rule]
    return lambda row: [tuple(str(row[place]) for place in own)]


def drops_of_caches_row(row: Sequence[Any]) -> Iterable[Invalidation]:
    """Yields the invalidations of a row ``[cache_name, keys or null, time]`` of the stream ``caches``.

    A row with the special name yields invalidations of all caches that depend on a room's current state.
    """
    name, keys = row[0], row[1]
    if name != ROOM_STATE:
        yield Invalidation(name, None if keys is None else tuple(keys))
        return
    if keys:
        yield from drops_of_room_state(keys[0], keys[1:])
    else:
        yield from (Invalidation(cache, None) for cache in _state_rules)


def drops_of_room_state(room_id: str, user_ids: Sequence[str]) -> Iterable[Invalidation]:
    """Yields the invalidations after a change of a room's state. ``user_ids`` are the users whose membership changed."""
    for cache, rule in _state_rules.items():
        found = rule(room_id, user_ids)
        if found is None:
            yield Invalidation(cache, None)
        else:
            yield from (Invalidation(cache, tuple(key)) for key in found)


def room_state_keys(room_id: str, user_ids: Iterable[str]) -> list[list[str]]:
    """Returns the keys to write into the stream ``caches`` after a change of a room's state, one list for each row.

    ``user_ids`` are the users whose membership changed. One row has at most ``ROOM_STATE_USERS`` users.
    """
    users = list(user_ids)
    return [
        [room_id, *users[first : first + ROOM_STATE_USERS]] for first in range(0, max(len(users), 1), ROOM_STATE_USERS)
    ]


def spoil_begun(drops: Iterable[Invalidation], owner: object) -> None:
    """Spoils the tickets of ``owner`` (see ``CacheStore``) for the keys in ``drops``.

    Call this function when ``owner`` has changed data itself. Values of these keys that ``owner`` is computing at the
    moment are then not stored.
    """
    for drop in drops:
        if (store := stores.get(drop.cache)) is not None:
            store.spoil(drop.key, owner)


def apply_invalidations(drops: Iterable[Invalidation], by: object = None) -> None:
    """Applies invalidations to the caches of this process. Names of caches that this process lacks are ignored.

    ``by`` is an owner of tickets (``CacheStore``). Values that this owner is computing at the moment are stored
    nevertheless.
    """
    for drop in drops:
        store = stores.get(drop.cache)
        if store is None:
            continue
        if drop.key is None:
            store.drop_all(by)
        else:
            store.drop(drop.key, by)
