"""Builds state groups as chains of deltas in memory (pure).

The scheme and its invariants are described in ``state.models``. The *tip* of a chain is its last group. A state event
at a tip adds one row. A fork opens a new chain on top of the old chain. If a query for a state would read too many chains,
the state is stored again on a group further down, and in full if that takes too many rows. The groups of a builder are
numbered from 0 in the order of creation. The caller maps these numbers to ascending IDs.

    1 ◄─ 2 ◄─ 3       a chain with the tip 3: a state event after 3 adds group 4 to it
         ▲
         5            a state event after 2, which is no tip: a new chain, read by way of 2 and 1
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from state.groups.layered import StateKey, differing_keys, layered, load, whole

__all__ = ["HOPS_LIMIT", "ROWS_PER_KEY_LIMIT", "SPARE_ROWS", "GroupBuilder", "StateKey", "StoredGroup"]

HOPS_LIMIT = 20
"""The most chains that reading a full state may take, besides the group's own chain."""
ROWS_PER_KEY_LIMIT = 2.25
SPARE_ROWS = 100
"""Reading a full state of k keys takes at most ``ROWS_PER_KEY_LIMIT * k + SPARE_ROWS`` rows.

With a higher limit fewer rows are stored and more are read. On the largest shipped room, a limit of 3 stores 1.18 rows
per event, and 2.25 stores 1.26.
"""


@dataclass(frozen=True, slots=True)
class _Group:
    # ``changes`` are the delta rows: key -> event ID, or None if the key is removed.
    prev: int | None
    chain: int
    hops: int
    keys: int
    rows_to_read: int
    changes: Mapping[StateKey, str | None]


_RECENT = 4
"""The number of full states that a builder caches."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group in the database, as far as a builder needs it.

    ``keys`` is the number of entries of the state. ``is_tip``: the last group of its chain.
    """

    state: Mapping[StateKey, str]
    hops: int
    keys: int
    rows_to_read: int
    is_tip: bool


class GroupBuilder:
    """``below`` returns the number of a stored group further down than an adopted one, from which few rows lead to its state."""

    def __init__(self, below: Callable[[int], int | None] = lambda _adopted: None) -> None:
        self._stored_below = below
        self._groups: list[_Group] = []
        self._tips: dict[int, int] = {}
        self._copies: dict[int, int] = {}
        self._originals: dict[int, int] = {}
        self._adopted: dict[int, Mapping[StateKey, str]] = {}
        self._compared: dict[tuple[int, int], set[StateKey]] = {}
        self._recent: dict[int, dict[StateKey, str]] = {}
        self._history: dict[int, dict[StateKey, tuple[list[int], list[str | None]]]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def add_full(self, state: Mapping[StateKey, str]) -> int:
        number = len(self._groups)
        return self._store(_Group(None, number, 0, len(state), len(state), dict(state)))

    def adopt(self, stored: StoredGroup) -> int:
        """Adds a group that is stored already, so that new groups can build on it. Returns its number."""
        number = len(self._groups)
        group = _Group(None, number, stored.hops, stored.keys, stored.rows_to_read, stored.state)
        self._groups.append(group)
        self._tips[number] = number if stored.is_tip else -1
        self._adopted[number] = stored.state
        return number

    def add(self, base: int, changes: Mapping[StateKey, str | None]) -> int:
        """Adds a group with the state of ``base`` plus ``changes`` (None removes a key).

        Returns its number.

        If reading it would take too many rows or chains, ``base`` is first copied: on a stored group further down, or in
        full. Later groups on ``base`` use the same copy. If there are about as many changes as entries, a full group is
        stored instead. A single change always builds on ``base`` or its copy, so the state before a state event is always
        that of the group below.
        """
        number = self._add(base, changes)
        if number is None and (len(changes) == 1 or 2 * len(changes) < self._groups[base].keys):
            number = self._add(self._copy(base), changes)
            if number is None:  # the copy stands on a group further down, and is at a bound itself
                number = self._add(self._copy_in_full(base), changes)
        if number is not None:
            return number
        state = {**self.expand(base), **changes}
        return self.add_full({key: event_id for key, event_id in state.items() if event_id is not None})

    def end_chains(self) -> None:
        """Makes each later group open a new chain, because another transaction may have extended the present chains."""
        self._tips = dict.fromkeys(self._tips, -1)

    def add_nearest(self, bases: Mapping[int, Mapping[StateKey, str]], state: Mapping[StateKey, str]) -> int:
        """Returns the number of a group with this full state, built on the base that needs the fewest rows and hops.

        ``bases`` maps groups to their full states. A base with an equal state is returned itself. Without bases the
        state is stored in full.
        """
        changes: dict[int, Mapping[StateKey, str | None]] = {}
        for base, old in bases.items():
            # Compared entry by entry: sets of the entries of 3,000 members, for each of hundreds of bases, take far longer.
            put: dict[StateKey, str | None] = {k: e for k, e in state.items() if old.get(k) != e}
            changes[base] = put | dict.fromkeys(key for key in old if key not in state)
        if not changes:
            return self.add_full(state)
        return self.add_cheapest({base: len(needed) for base, needed in changes.items()}, changes.__getitem__)

    def add_cheapest(self, sizes: Mapping[int, int], changes: Callable[[int], Mapping[StateKey, str | None]]) -> int:
        """Returns the number of a group with the wanted state, built on the base that needs the fewest rows and hops.

        ``changes(base)`` turns a base into the wanted state. ``sizes`` maps each base (at least one) to the number of
        its changes. A base without changes is returned itself.
        """
        best: tuple[int, int] | None = None
        for base, needed in sizes.items():
            if not needed:
                return base
            cost = needed + self._hops_above(base)
            if best is None or cost <= best[0]:
                best = cost, base
        assert best is not None  # noqa: S101 - at least one was given
        # A fixed order, so that equal changes store equal rows: first the entries that are set, then the removed ones,
        # by key.
        ordered = sorted(changes(best[1]).items(), key=lambda change: (change[1] is None, change[0]))
        return self.add(best[1], dict(ordered))

    def size(self, group: int) -> int:
        return self._groups[group].keys

    def rows_to_read(self, group: int) -> int:
        return self._groups[group].rows_to_read

    def apart(self, groups: Sequence[int]) -> list[dict[StateKey, str | None]] | None:
        """Returns for each group the entries in which it differs from the first one: key -> event ID, or None.

        Time grows with the changes between the groups. Returns None if two of them build on different full groups, so
        that their changes are not known.
        """
        found: list[dict[StateKey, str | None]] = []
        for group in groups:
            touched = self._differing_keys(groups[0], group)
            if touched is None:
                return None
            self.load(groups[0], touched)
            entries = ((key, self.lookup(group, key)) for key in touched)
            found.append({key: event_id for key, event_id in entries if self.lookup(groups[0], key) != event_id})
        return found

    def step(self, group: int) -> tuple[int | None, Mapping[StateKey, str | None]]:
        """Returns the group below (or None), and the entries in which ``group`` differs from it."""
        return self._groups[group].prev, self._groups[group].changes

    def original(self, copy: int) -> int:
        return self._originals[copy]

    def lookup(self, group: int, key: StateKey) -> str | None:
        """Returns the event at one key of a group's state, or None."""
        number: int | None = group
        while number is not None:
            chain = self._groups[number].chain
            changes = self._history.get(chain)
            if changes is not None and (found := changes.get(key)) is not None:
                numbers, events = found
                if numbers[-1] <= number:
                    return events[-1]
                if place := bisect_right(numbers, number):
                    return events[place - 1]
            if chain in self._adopted:
                return self._adopted[chain].get(key)
            number = self._groups[chain].prev
        return None

    def load(self, group: int, keys: Collection[StateKey]) -> None:
        """Reads entries of an adopted state below the group together. ``lookup`` would read each by itself."""
        number: int | None = group
        while number is not None and (chain := self._groups[number].chain) not in self._adopted:
            number = self._groups[chain].prev
        if number is not None:
            load(self._adopted[chain], keys)

    def expand(self, group: int) -> dict[StateKey, str]:
        """Returns the full state of a group. This is fast if a group with a nearby number was expanded recently."""
        state = self._recent.pop(group, None)
        if state is None and group not in self._adopted:
            state = self._expand_from_recent(group)
        if state is None:
            state = whole(self.shared(group))
        self._recent[group] = state
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        return dict(state)

    def shared(self, group: int) -> Mapping[StateKey, str]:
        """Returns the full state of a group, which shares memory with that of an adopted group below."""
        changes: dict[StateKey, str | None] = {}
        for number in self._group_and_below(group):
            if number in self._adopted:
                return layered(self._adopted[number], changes)
            for key, event_id in self._groups[number].changes.items():
                changes.setdefault(key, event_id)
        return {key: event_id for key, event_id in changes.items() if event_id is not None}

    def _expand_from_recent(self, group: int) -> dict[StateKey, str] | None:
        near = min(self._recent, key=lambda number: abs(number - group), default=None)
        touched = self._keys_changed_between(near, group) if near is not None else None
        if near is None or touched is None:
            return None
        state = dict(self._recent[near])
        for key in touched:
            event_id = self.lookup(group, key)
            if event_id is None:
                state.pop(key, None)
            else:
                state[key] = event_id
        return state

    def changes_between(self, old: int | None, new: int) -> dict[StateKey, tuple[str | None, str | None]]:
        """Returns ``{key: (event before, event after)}`` where two states differ."""
        if old is None:
            found = self._difference({}, self.expand(new))
        elif (touched := self._differing_keys(old, new)) is not None:
            self.load(old, touched)
            self.load(new, touched)
            found = {key: (self.lookup(old, key), self.lookup(new, key)) for key in sorted(touched)}
        else:
            found = self._difference(self.expand(old), self.expand(new))
        return {key: pair for key, pair in found.items() if pair[0] != pair[1]}

    def _keys_changed_between(self, left: int, right: int) -> set[StateKey] | None:
        # The keys that change on the way from both down to the nearest group below both; None if there is none.
        touched: set[StateKey] = set()
        while left != right:
            left, right = max(left, right), min(left, right)
            below = self._originals.get(left)  # a copy changes nothing
            if below is None:
                below = self._groups[left].prev
                if below is None:
                    return None
                touched.update(self._groups[left].changes)
            left = below
        return touched

    def _differing_keys(self, left: int, right: int) -> set[StateKey] | None:
        # Like ``_keys_changed_between``, but two groups may also build on different adopted groups.
        touched = self._keys_changed_between(left, right)
        if touched is not None or not self._adopted:
            return touched
        found: set[StateKey] = set()
        roots = []
        for group in (left, right):
            number: int | None = group
            while number is not None and number not in self._adopted:
                original = self._originals.get(number)  # a copy changes nothing
                found.update(self._groups[number].changes if original is None else ())
                number = self._groups[number].prev if original is None else original
            if number is None:
                return None
            roots.append(number)
        first, second = roots
        below = differing_keys(self._adopted[first], self._adopted[second], self._compared)
        if below is None:
            pairs = self._difference(self.expand(first), self.expand(second))
            below = {key for key, (old, new) in pairs.items() if old != new}
        return found | below

    def kept(self, groups: Iterable[int]) -> set[int]:
        """Returns the given groups and all below them, which must be stored to read them."""
        found: set[int] = set()
        for group in groups:
            for number in self._group_and_below(group):
                if number in found:
                    break
                found.add(number)
        return found

    def group_rows(self, kept: Collection[int] | None = None) -> Iterator[tuple[int, int | None, int, int, int, int]]:
        """Yields (number, prev group, chain, hops, keys, rows to read) of the groups in ``kept`` (None: all), ascending."""
        for number in range(len(self._groups)) if kept is None else sorted(kept):
            group = self._groups[number]
            yield number, group.prev, group.chain, group.hops, group.keys, group.rows_to_read

    def delta_rows(self, kept: Collection[int] | None = None) -> Iterator[tuple[int, int, str, str, str | None]]:
        """Yields (chain, group, type, state key, event ID or None) of ``kept`` (None: all), ascending by group."""
        for number in range(len(self._groups)) if kept is None else sorted(kept):
            group = self._groups[number]
            for (event_type, state_key), event_id in group.changes.items():
                yield group.chain, number, event_type, state_key, event_id

    def _add(self, base: int, changes: Mapping[StateKey, str | None]) -> int | None:
        old = self._groups[base]
        on_tip = self._tips[old.chain] == base
        hops = self._hops_above(base)
        keys = old.keys + sum((new is not None) - (self.lookup(base, key) is not None) for key, new in changes.items())
        rows = old.rows_to_read + len(changes)
        if hops > HOPS_LIMIT or rows > ROWS_PER_KEY_LIMIT * keys + SPARE_ROWS:
            return None
        chain = old.chain if on_tip else len(self._groups)
        return self._store(_Group(base, chain, hops, keys, rows, dict(changes)))

    def _hops_above(self, base: int) -> int:
        old = self._groups[base]
        return old.hops if self._tips[old.chain] == base else old.hops + 1

    def _copy(self, base: int) -> int:
        if base not in self._copies:
            if (copy := self._copy_further_down(base)) is None:
                return self._copy_in_full(base)
            self._copies[base], self._originals[copy] = copy, base
        return self._copies[base]

    def _copy_in_full(self, base: int) -> int:
        copy = self._copies[base] = self.add_full(self.expand(base))
        self._originals[copy] = base
        return copy

    def _copy_further_down(self, base: int) -> int | None:
        # Otherwise each event on a branch of a branch, twenty deep, would store all entries of a large room.
        if self._hops_above(base) <= HOPS_LIMIT:  # too many rows: they would soon be too many again
            return None
        root = next((number for number in self._group_and_below(base) if number in self._adopted), None)
        below = None if root is None else self._stored_below(root)
        if below is None:
            return None
        changes = {key: event_id for key, (_, event_id) in self.changes_between(below, base).items()}
        return self._add(below, changes) if 2 * len(changes) < self._groups[base].keys else None

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

    def _group_and_below(self, group: int) -> Iterator[int]:
        number: int | None = group
        while number is not None:
            yield number
            number = self._groups[number].prev

    @staticmethod
    def _difference(
        old: Mapping[StateKey, str], new: Mapping[StateKey, str]
    ) -> dict[StateKey, tuple[str | None, str | None]]:
        return {key: (old.get(key), new.get(key)) for key in {**old, **new}}
