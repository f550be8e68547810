"""Builds state groups as chains of deltas in memory (pure).

The scheme and its invariants are described in ``state.models``. The *tip* of a chain is its last group. A state event
at a tip adds one row. A fork opens a new chain on top of the old chain. A group is stored in full only if a query for
its state would otherwise read too many rows or too many chains. The groups of a builder are numbered from 0 in the
order of creation. The caller maps these numbers to ascending IDs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from state.groups.layered import StateKey, keys_apart, layered, whole

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
    """A state group in memory.

    ``changes`` has the group's delta rows: it maps each key to an event ID, or to null if the key is removed.
    """

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
    """A group in the database, as far as a builder needs it. ``is_tip`` is true for the last group of a chain."""

    state: Mapping[StateKey, str]
    hops: int
    rows_to_read: int
    is_tip: bool


class GroupBuilder:
    """A builder of state groups for one room. It holds the groups in the order of creation."""

    def __init__(self) -> None:
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
        """Adds a group that is stored in full, and returns its number."""
        number = len(self._groups)
        return self._store(_Group(None, number, 0, len(state), len(state), dict(state)))

    def adopt(self, stored: StoredGroup) -> int:
        """Adds a group that is stored already, so that new groups can build on it. Returns its number."""
        number = len(self._groups)
        group = _Group(None, number, stored.hops, len(stored.state), stored.rows_to_read, stored.state)
        self._groups.append(group)
        self._tips[number] = number if stored.is_tip else -1
        self._adopted[number] = stored.state
        return number

    def add(self, base: int, changes: Mapping[StateKey, str | None]) -> int:
        """Adds a group with the state of ``base`` plus ``changes`` (null removes a key). Returns the group's number.

        Time grows with the number of changes. If reading the new group would take too many rows or chains, ``base`` is
        first copied in full. Later groups on ``base`` use the same copy. If the number of changes is close to the
        number of entries of the state, a full group is stored instead. A single change always builds on ``base`` or its
        copy, so the state before a state event is always the state of the group below.
        """
        number = self._add(base, changes)
        if number is None and (len(changes) == 1 or 2 * len(changes) < self._groups[base].keys):
            number = self._add(self._copy(base), changes)
        return number if number is not None else self._add_full_on(base, changes)

    def end_chains(self) -> None:
        """Makes each later group open a new chain, because another transaction may have extended the present chains."""
        self._tips = dict.fromkeys(self._tips, -1)

    def add_nearest(self, bases: Mapping[int, Mapping[StateKey, str]], state: Mapping[StateKey, str]) -> int:
        """Returns the number of a group with this full state.

        ``bases`` maps groups to their full states. A base with an equal state is returned itself. Otherwise a new group
        is added on the base that needs the fewest rows and hops, so that rooms with many forks need no full copies.
        Without any bases the state is stored in full.
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

        ``changes(base)`` returns the changes that turn the state of a base into the wanted state. ``sizes`` maps each
        base, of which there must be one or more, to the number of its changes. A base without changes has the wanted
        state already, and is returned itself.
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
        """Returns the number of entries of a group's full state."""
        return self._groups[group].keys

    def apart(self, groups: Sequence[int]) -> list[dict[StateKey, str | None]] | None:
        """Returns one dictionary for each group: the entries in which the group differs from the first of ``groups``.

        Each dictionary maps keys to event IDs, or to null where the group has no entry. Time grows with the changes
        between the groups. Returns null instead of the list if these changes are not known. They are not known if two
        of the groups build on different full groups.
        """
        found: list[dict[StateKey, str | None]] = []
        for group in groups:
            touched = self._keys_apart(groups[0], group)
            if touched is None:
                return None
            entries = ((key, self.lookup(group, key)) for key in touched)
            found.append({key: event_id for key, event_id in entries if self.lookup(groups[0], key) != event_id})
        return found

    def step(self, group: int) -> tuple[int | None, Mapping[StateKey, str | None]]:
        """Returns the group below ``group``, or null if there is none, and the entries in which ``group`` differs from it."""
        return self._groups[group].prev, self._groups[group].changes

    def original(self, copy: int) -> int:
        """Returns the group from which ``add`` made the full copy ``copy``."""
        return self._originals[copy]

    def lookup(self, group: int, key: StateKey) -> str | None:
        """Returns the event at one key of a group's state, or null if the state has no entry there."""
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

    def expand(self, group: int) -> dict[StateKey, str]:
        """Returns the full state of a group. This is fast if a group with a nearby number was expanded recently."""
        state = self._expand_from_recent(group) if group not in self._adopted else None
        if state is None:
            state = whole(self.shared(group))
        self._recent[group] = state
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        return dict(state)

    def shared(self, group: int) -> Mapping[StateKey, str]:
        """Returns the full state of a group.

        If ``group`` builds on an adopted group, the result shares memory with the state of the adopted group.
        """
        changes: dict[StateKey, str | None] = {}
        for number in self._line(group):
            if number in self._adopted:
                return layered(self._adopted[number], changes)
            for key, event_id in self._groups[number].changes.items():
                changes.setdefault(key, event_id)
        return {key: event_id for key, event_id in changes.items() if event_id is not None}

    def _expand_from_recent(self, group: int) -> dict[StateKey, str] | None:
        near = min(self._recent, key=lambda number: abs(number - group), default=None)
        touched = self._keys_between(near, group) if near is not None else None
        if near is None or touched is None:
            return None
        state = dict(self._recent[near])
        self._recent.pop(group, None)  # so that the caller adds it as the latest
        for key in touched:
            event_id = self.lookup(group, key)
            if event_id is None:
                state.pop(key, None)
            else:
                state[key] = event_id
        return state

    def changes_between(self, old: int | None, new: int) -> dict[StateKey, tuple[str | None, str | None]]:
        """Returns the changes from the state of ``old`` to the state of ``new``, as ``{key: (event before, event after)}``."""
        if old is None:
            found = self._difference({}, self.expand(new))
        elif (touched := self._keys_apart(old, new)) is not None:
            found = {key: (self.lookup(old, key), self.lookup(new, key)) for key in sorted(touched)}
        else:
            found = self._difference(self.expand(old), self.expand(new))
        return {key: pair for key, pair in found.items() if pair[0] != pair[1]}

    def _keys_between(self, one: int, other: int) -> set[StateKey] | None:
        """Returns the keys that change on the way from each of two groups down to the nearest group below both.

        Returns null if no group lies below both.
        """
        touched: set[StateKey] = set()
        while one != other:
            one, other = max(one, other), min(one, other)
            below = self._originals.get(one)  # a copy changes nothing
            if below is None:
                below = self._groups[one].prev
                if below is None:
                    return None
                touched.update(self._groups[one].changes)
            one = below
        return touched

    def _keys_apart(self, one: int, other: int) -> set[StateKey] | None:
        """Returns the same as ``_keys_between``, but also for two groups that build on different adopted groups.

        For such groups it also compares the states of the adopted groups.
        """
        touched = self._keys_between(one, other)
        if touched is not None or not self._adopted:
            return touched
        found: set[StateKey] = set()
        roots = []
        for group in (one, other):
            number: int | None = group
            while number is not None and number not in self._adopted:
                original = self._originals.get(number)  # a copy changes nothing
                found.update(self._groups[number].changes if original is None else ())
                number = self._groups[number].prev if original is None else original
            if number is None:
                return None
            roots.append(number)
        first, second = (self._adopted[root] for root in roots)
        return found | keys_apart(first, second, self._compared)

    def kept(self, groups: Iterable[int]) -> set[int]:
        """Returns the given groups and all groups below them.

        To read one of ``groups``, all groups below it must be stored as well.
        """
        found: set[int] = set()
        for group in groups:
            for number in self._line(group):
                if number in found:
                    break
                found.add(number)
        return found

    def group_rows(self, kept: Collection[int] | None = None) -> Iterator[tuple[int, int | None, int, int, int, int]]:
        """Yields (number, prev group, chain, hops, keys, rows to read) of the groups in ``kept``, ascending.

        If ``kept`` is null, yields the rows of all groups.
        """
        for number in range(len(self._groups)) if kept is None else sorted(kept):
            group = self._groups[number]
            yield number, group.prev, group.chain, group.hops, group.keys, group.rows_to_read

    def delta_rows(self, kept: Collection[int] | None = None) -> Iterator[tuple[int, int, str, str, str | None]]:
        """Yields (chain, group, type, state key, event ID or null) of each delta row of ``kept``, ascending by group.

        If ``kept`` is null, yields the rows of all groups.
        """
        for number in range(len(self._groups)) if kept is None else sorted(kept):
            group = self._groups[number]
            for (event_type, state_key), event_id in group.changes.items():
                yield group.chain, number, event_type, state_key, event_id

    def _add(self, base: int, changes: Mapping[StateKey, str | None]) -> int | None:
        """Adds a group as a delta on ``base``, and returns its number.

        Adds nothing and returns null if reading the new group would take too many rows or chains.
        """
        old = self._groups[base]
        on_tip = self._tips[old.chain] == base
        hops = self._hops_above(base)
        keys = old.keys + sum(self._growth(base, key, event_id) for key, event_id in changes.items())
        rows = old.rows_to_read + len(changes)
        if hops > HOPS_LIMIT or rows > ROWS_PER_KEY_LIMIT * keys + SPARE_ROWS:
            return None
        chain = old.chain if on_tip else len(self._groups)
        return self._store(_Group(base, chain, hops, keys, rows, dict(changes)))

    def _hops_above(self, base: int) -> int:
        """Returns the hops of a group that builds on ``base``. A fork adds one, because it opens a chain."""
        old = self._groups[base]
        return old.hops if self._tips[old.chain] == base else old.hops + 1

    def _copy(self, base: int) -> int:
        """Returns the number of a full copy of ``base``. The first call makes the copy, and later calls return the same copy."""
        if base not in self._copies:
            copy = self._copies[base] = self.add_full(self.expand(base))
            self._originals[copy] = base
        return self._copies[base]

    def _add_full_on(self, base: int, changes: Mapping[StateKey, str | None]) -> int:
        """Adds a group with the state of ``base`` plus ``changes``, stored in full. Returns the number of the group.

        Used if ``changes`` has about as many entries as the state of ``base``. In that case a full copy of ``base``
        with ``changes`` as a delta on top would take more rows.
        """
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

    def _line(self, group: int) -> Iterator[int]:
        """Yields the group and all groups below it, down to the root."""
        number: int | None = group
        while number is not None:
            yield number
            number = self._groups[number].prev

    @staticmethod
    def _difference(
        old: Mapping[StateKey, str], new: Mapping[StateKey, str]
    ) -> dict[StateKey, tuple[str | None, str | None]]:
        return {key: (old.get(key), new.get(key)) for key in {**old, **new}}
