"""Which entries of a room's state are wanted (pure).

A filter is a union: some exact keys, some whole types, and perhaps everything but some types. So the usual questions are
one value each: the power levels, all members, all but the members, or all but the members with those who spoke.
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
    """Lets an entry pass that is at one of ``keys``, of one of ``types``, or of any type but those in ``all_but``.

    ``all_but`` null: entries of other types do not pass. An empty one: everything passes.
    """

    keys: frozenset[StateKey] = frozenset()
    types: frozenset[str] = frozenset()
    all_but: frozenset[str] | None = None

    @classmethod
    def at(cls, keys: Iterable[StateKey]) -> StateFilter:
        """The entries at these keys."""
        return cls(keys=frozenset(keys))

    @classmethod
    def of_types(cls, types: Iterable[str]) -> StateFilter:
        """All entries of these types, whatever their state key."""
        return cls(types=_types(types))

    @classmethod
    def members(cls) -> StateFilter:
        """All members."""
        return cls(types=frozenset({MEMBER}))

    @classmethod
    def without_members(cls) -> StateFilter:
        """All but the members."""
        return cls(all_but=frozenset({MEMBER}))

    @classmethod
    def lazy(cls, users: Iterable[str]) -> StateFilter:
        """What a client needs that asks for members as it meets them: these members and everything that is no member."""
        return cls(keys=frozenset((MEMBER, user) for user in _types(users)), all_but=frozenset({MEMBER}))

    @property
    def is_everything(self) -> bool:
        """Whether every entry passes."""
        return self.all_but is not None and self.all_but <= self.types

    @property
    def is_keys_only(self) -> bool:
        """Whether it names every key that may pass."""
        return not self.types and self.all_but is None

    def passes(self, key: StateKey) -> bool:
        """Whether the entry at this key is wanted."""
        return key in self.keys or key[0] in self.types or (self.all_but is not None and key[0] not in self.all_but)

    def apply(self, state: Mapping[StateKey, Event]) -> dict[StateKey, Event]:
        """What passes of a state that is at hand."""
        if self.is_keys_only:
            return {key: state[key] for key in self.keys if key in state}
        return {key: event for key, event in state.items() if self.passes(key)}

    def __or__(self, other: StateFilter) -> StateFilter:
        """A filter that lets pass what one of the two does."""
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
