"""State groups as chains of deltas, built in memory (pure).

The chain scheme of ``state.models`` and its bounds: a state event next to the tip of a chain adds one row; a fork
opens a new chain that builds on the old one; a group is stored in full only when its expansion would otherwise read
too many rows or too many chains. Groups are numbered from 0 in the order of creation; whoever stores them maps the
numbers to ascending IDs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["HOPS_LIMIT", "ROWS_PER_KEY_LIMIT", "SPARE_ROWS", "GroupBuilder", "StateKey"]

StateKey = tuple[str, str]
"""``(type, state_key)``."""

HOPS_LIMIT = 10
"""Most chains that an expansion reads besides the group's own."""
ROWS_PER_KEY_LIMIT = 3
SPARE_ROWS = 100
"""An expansion of a state with k keys reads at most ``ROWS_PER_KEY_LIMIT * k + SPARE_ROWS`` rows."""


@dataclass(frozen=True, slots=True)
class _Group:
    """One group; ``changes`` holds its delta rows, null for a key that is removed."""

    prev: int | None
    chain: int
    hops: int
    keys: int
    rows_to_read: int
    changes: Mapping[StateKey, str | None]


class GroupBuilder:
    """The groups of one room, in the order in which they come into being."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        self._tips: dict[int, int] = {}
        self._copies: dict[int, int] = {}
        self._originals: dict[int, int] = {}
        self._history: dict[int, dict[StateKey, tuple[list[int], list[str | None]]]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def add_full(self, state: Mapping[StateKey, str]) -> int:
        """A new group that is stored in full."""
        number = len(self._groups)
        return self._store(_Group(None, number, 0, len(state), len(state), dict(state)))

    def add(self, base: int, changes: Mapping[StateKey, str | None]) -> int:
        """A new group: the state of ``base`` with ``changes`` (null removes a key).

        Takes time in proportion to the changes. Where an expansion would read too much, ``base`` is first copied in
        full, once for all groups that will build on it.
        """
        number = self._add(base, changes)
        if number is None and 2 * len(changes) < self._groups[base].keys:
            number = self._add(self._copy(base), changes)
        return number if number is not None else self._add_full_on(base, changes)

    def lookup(self, group: int, key: StateKey) -> str | None:
        """The event at one key of a group's state, or null."""
        for chain, upto in self._spans(group):
            numbers, events = self._history[chain].get(key, ((), ()))
            found = bisect_right(numbers, upto)
            if found:
                return events[found - 1]
        return None

    def expand(self, group: int) -> dict[StateKey, str]:
        """The full state of a group."""
        state: dict[StateKey, str | None] = {}
        for number in self._line(group):
            for key, event_id in self._groups[number].changes.items():
                state.setdefault(key, event_id)
        return {key: event_id for key, event_id in state.items() if event_id is not None}

    def changes_between(self, old: int | None, new: int) -> dict[StateKey, tuple[str | None, str | None]]:
        """What turns the state of ``old`` into that of ``new``: key -> (event before, event after)."""
        touched: dict[StateKey, str | None] = {}
        number: int | None = new
        while number is not None and old is not None and number > old:
            if number in self._originals:  # a copy changes nothing
                number = self._originals[number]
                continue
            for key, event_id in self._groups[number].changes.items():
                touched.setdefault(key, event_id)
            number = self._groups[number].prev
        if old is not None and number == old:
            found = {key: (self.lookup(old, key), event_id) for key, event_id in touched.items()}
        else:
            found = self._difference(self.expand(old) if old is not None else {}, self.expand(new))
        return {key: pair for key, pair in found.items() if pair[0] != pair[1]}

    def group_rows(self) -> Iterator[tuple[int, int | None, int, int, int, int]]:
        """(number, prev group, chain, hops, keys, rows to read) of every group, ascending."""
        for number, group in enumerate(self._groups):
            yield number, group.prev, group.chain, group.hops, group.keys, group.rows_to_read

    def delta_rows(self) -> Iterator[tuple[int, int, str, str, str | None]]:
        """(chain, group, type, state key, event ID or null) of every delta row, ascending by group."""
        for number, group in enumerate(self._groups):
            for (event_type, state_key), event_id in group.changes.items():
                yield group.chain, number, event_type, state_key, event_id

    def _add(self, base: int, changes: Mapping[StateKey, str | None]) -> int | None:
        """The new group as a delta, or null when that breaks a bound."""
        old = self._groups[base]
        on_tip = self._tips[old.chain] == base
        hops = old.hops if on_tip else old.hops + 1
        keys = old.keys + sum(self._growth(base, key, event_id) for key, event_id in changes.items())
        rows = old.rows_to_read + len(changes)
        if hops > HOPS_LIMIT or rows > ROWS_PER_KEY_LIMIT * keys + SPARE_ROWS:
            return None
        chain = old.chain if on_tip else len(self._groups)
        return self._store(_Group(base, chain, hops, keys, rows, dict(changes)))

    def _copy(self, base: int) -> int:
        """A group with the state of ``base``, stored in full."""
        if base not in self._copies:
            copy = self._copies[base] = self.add_full(self.expand(base))
            self._originals[copy] = base
        return self._copies[base]

    def _add_full_on(self, base: int, changes: Mapping[StateKey, str | None]) -> int:
        """For changes as large as the state: storing the outcome writes less."""
        state = {**self.expand(base), **changes}
        return self.add_full({key: event_id for key, event_id in state.items() if event_id is not None})

    def _store(self, group: _Group) -> int:
        number = len(self._groups)
        self._groups.append(group)
        self._tips[group.chain] = number
        history = self._history.setdefault(group.chain, {})
        for key, event_id in group.changes.items():
            numbers, events = history.setdefault(key, ([], []))
            numbers.append(number)
            events.append(event_id)
        return number

    def _growth(self, base: int, key: StateKey, event_id: str | None) -> int:
        return (event_id is not None) - (self.lookup(base, key) is not None)

    def _spans(self, group: int) -> Iterator[tuple[int, int]]:
        """(chain, last group in it) from a group down to its root: what an expansion reads."""
        number: int | None = group
        while number is not None:
            chain = self._groups[number].chain
            yield chain, number
            number = self._groups[chain].prev

    def _line(self, group: int) -> Iterator[int]:
        """The groups from this one down to its root."""
        number: int | None = group
        while number is not None:
            yield number
            number = self._groups[number].prev

    @staticmethod
    def _difference(
        old: Mapping[StateKey, str], new: Mapping[StateKey, str]
    ) -> dict[StateKey, tuple[str | None, str | None]]:
        return {key: (old.get(key), new.get(key)) for key in {**old, **new}}
