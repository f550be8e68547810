"""Filters for the entries of a room's state (pure).

A filter is a union of exact keys, of whole types, and perhaps of all types except some. Each common query is one
filter: the power levels, all members, everything but the members, or everything but the members plus some named
members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from state.groups.deltas import StateKey

__all__ = ["EVERYTHING", "MEMBER", "StateFilter"]

MEMBER = "m.room.member"
Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class StateFilter:
    """A filter that accepts entries at one of ``keys``, of one of ``types``, or of any type outside ``all_but``.

    If ``all_but`` is null, only ``keys`` and ``types`` count. If ``all_but`` is empty, every entry is accepted.
    """

    keys: frozenset[StateKey] = frozenset()
    types: frozenset[str] = frozenset()
    all_but: frozenset[str] | None = None

    @classmethod
    def at(cls, keys: Iterable[StateKey]) -> StateFilter:
        """Returns a filter for exact keys."""
        return cls(keys=frozenset(keys))

    @classmethod
    def of_types(cls, types: Iterable[str]) -> StateFilter:
        """Returns a filter for all entries of these types, whatever their state key."""
        return cls(types=_types(types))

    @classmethod
    def members(cls) -> StateFilter:
        """Returns a filter for all members."""
        return cls(types=frozenset({MEMBER}))

    @classmethod
    def without_members(cls) -> StateFilter:
        """Returns a filter for everything but the members."""
        return cls(all_but=frozenset({MEMBER}))

    @classmethod
    def lazy(cls, users: Iterable[str]) -> StateFilter:
        """Returns a filter for clients that load members lazily: everything but the members, plus these ``users``."""
        return cls(keys=frozenset((MEMBER, user) for user in _types(users)), all_but=frozenset({MEMBER}))

    @property
    def is_everything(self) -> bool:
        """True if the filter accepts every entry."""
        return self.all_but is not None and self.all_but <= self.types

    @property
    def is_keys_only(self) -> bool:
        """True if the filter names every key that it accepts."""
        return not self.types and self.all_but is None

    def passes(self, key: StateKey) -> bool:
        """Returns true if the filter accepts the entry at this key."""
        return key in self.keys or key[0] in self.types or (self.all_but is not None and key[0] not in self.all_but)

    def apply(self, state: Mapping[StateKey, Event]) -> dict[StateKey, Event]:
        """Returns the entries of a state in memory that the filter accepts."""
        if self.is_keys_only:
            return {key: state[key] for key in self.keys if key in state}
        return {key: event for key, event in state.items() if self.passes(key)}

    def __or__(self, other: StateFilter) -> StateFilter:
        """Returns a filter that accepts each entry that ``self`` or ``other`` accepts."""
        return StateFilter(self.keys | other.keys, self.types | other.types, _both(self.all_but, other.all_but))


def _types(values: Iterable[str]) -> frozenset[str]:
    if isinstance(values, str):
        raise TypeError(f"{values!r} is one string; give a collection of strings")
    return frozenset(values)


def _both(one: Collection[str] | None, other: Collection[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        known = one if other is None else other
        return None if known is None else frozenset(known)
    return frozenset(one) & frozenset(other)


EVERYTHING = StateFilter(all_but=frozenset())
"""The whole state."""
