"""Filters for the entries of a room's state (pure).

A filter is a union of exact keys, of whole types, and perhaps of all types except some. For example, a client that
loads members lazily gets everything but the members, plus those who spoke::

    StateFilter.lazy(["@ada:example.org"])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from state.groups.deltas import StateKey

__all__ = ["EVERYTHING", "MEMBER", "StateFilter"]

MEMBER = "m.room.member"
Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class StateFilter:
    """A filter that accepts entries at one of ``keys``, of one of ``types``, or of any type outside ``all_but``.

    If ``all_but`` is None, only ``keys`` and ``types`` count. If it is empty, every entry is accepted.
    """

    keys: frozenset[StateKey] = frozenset()
    types: frozenset[str] = frozenset()
    all_but: frozenset[str] | None = None

    @classmethod
    def at(cls, keys: Iterable[StateKey]) -> StateFilter:
        return cls(keys=frozenset(keys))

    @classmethod
    def of_types(cls, types: Iterable[str]) -> StateFilter:
        return cls(types=_types(types))

    @classmethod
    def members(cls) -> StateFilter:
        return cls(types=frozenset({MEMBER}))

    @classmethod
    def without_members(cls) -> StateFilter:
        return cls(all_but=frozenset({MEMBER}))

    @classmethod
    def lazy(cls, users: Iterable[str]) -> StateFilter:
        return cls(keys=frozenset((MEMBER, user) for user in _types(users)), all_but=frozenset({MEMBER}))

    @property
    def is_everything(self) -> bool:
        return self.all_but is not None and self.all_but <= self.types

    @property
    def is_keys_only(self) -> bool:
        return not self.types and self.all_but is None

    def passes(self, key: StateKey) -> bool:
        return key in self.keys or key[0] in self.types or (self.all_but is not None and key[0] not in self.all_but)

    def apply(self, state: Mapping[StateKey, Event]) -> dict[StateKey, Event]:
        if self.is_keys_only:
            return {key: state[key] for key in self.keys if key in state}
        return {key: event for key, event in state.items() if self.passes(key)}

    def __or__(self, other: StateFilter) -> StateFilter:
        if self.all_but is None or other.all_but is None:
            all_but = other.all_but if self.all_but is None else self.all_but
        else:
            all_but = self.all_but & other.all_but
        return StateFilter(self.keys | other.keys, self.types | other.types, all_but)


def _types(values: Iterable[str]) -> frozenset[str]:
    if isinstance(values, str):
        raise TypeError(f"{values!r} is one string; give a collection of strings")
    return frozenset(values)


EVERYTHING = StateFilter(all_but=frozenset())
"""The whole state."""
