"""Computes the states of a room's stored state groups by the same rules as ``state.store``, and a digest of each (pure).

The digest of a state is a sum over its entries. So the digest of a group is computed from the digest of the group below
and the delta between the two. Comparing the states of all events of a room therefore takes time in proportion to the
delta rows. Any of the rows may be damaged. A missing row has the same effect here as in ``state.store``.

    digest(group 2) = digest(group 1) - digest(topic: T1) + digest(topic: T2)      for group 2 = group 1 + {topic: T2}
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from state.groups.compaction import entry_digest
from state.groups.deltas import GroupBuilder, StateKey

GroupRow = tuple[int, int | None, int, int, int, int]
"""(group, prev group, chain, hops, keys, rows to read)."""
DeltaRow = tuple[int, int, str, str, str | None]
"""(chain, group, type, state key, event ID or None)."""
_MASK = 2**64 - 1


class Digests:
    """The digests of the states of a builder's groups, unsigned numbers of 64 bits. Each is computed once."""

    def __init__(self, builder: GroupBuilder) -> None:
        self._builder = builder
        self._known: dict[int, int] = {}

    def of(self, group: int) -> int:
        unknown = []
        number: int | None = group
        while number is not None and number not in self._known:
            unknown.append(number)
            number = self._builder.step(number)[0]
        for number in reversed(unknown):
            self._known[number] = self._next(number)
        return self._known[group]

    def _next(self, group: int) -> int:
        prev, changes = self._builder.step(group)
        found = 0 if prev is None else self._known[prev]
        for key, event_id in changes.items():
            old = None if prev is None else self._builder.lookup(prev, key)
            found += entry_digest(key, event_id) - entry_digest(key, old)
        return found & _MASK


class StoredGroups:
    """The state groups of one room, made from their rows. ``group in groups`` is true if the group has a row."""

    def __init__(self, groups: Iterable[GroupRow], deltas: Iterable[DeltaRow]) -> None:
        self.rows = {row[0]: row for row in groups}
        self._changes: dict[int, dict[int, dict[StateKey, str | None]]] = {}
        self._history: dict[int, dict[StateKey, tuple[list[int], list[str | None]]]] = {}
        for chain, group, event_type, state_key, event_id in sorted(deltas, key=lambda row: row[:2]):
            self._changes.setdefault(chain, {}).setdefault(group, {})[event_type, state_key] = event_id
            numbers, events = self._history.setdefault(chain, {}).setdefault((event_type, state_key), ([], []))
            numbers.append(group)
            events.append(event_id)
        self.digests: dict[int, int] = {}
        """Group -> digest of its state, for every group that has a row."""
        # Ascending, because the chain below has a lower ID: its digests are then known.
        for chain, members in sorted(self._chains().items()):
            self._digest_chain(chain, members)

    def __contains__(self, group: int | None) -> bool:
        return group in self.rows

    def below(self, group: int) -> int | None:
        return self.rows[group][1]

    def state(self, group: int) -> dict[StateKey, str]:
        """Returns the full state of a group, as ``state.store`` would. A group without a row has an empty state."""
        state: dict[StateKey, str | None] = {}
        for chain, upto in self._spans(group):
            for key, (numbers, events) in self._history.get(chain, {}).items():
                place = bisect_right(numbers, upto)
                if place and key not in state:
                    state[key] = events[place - 1]
        return {key: event_id for key, event_id in state.items() if event_id is not None}

    def _chains(self) -> dict[int, list[int]]:
        # Delta rows are included even if their group has no row, because readers of higher groups in the chain apply
        # them.
        members: dict[int, set[int]] = {chain: set(changes) for chain, changes in self._changes.items()}
        for group, _, chain, *_ in self.rows.values():
            members.setdefault(chain, set()).add(group)
        return {chain: sorted(found) for chain, found in members.items()}

    def _digest_chain(self, chain: int, members: Sequence[int]) -> None:
        first = self.rows.get(chain)
        base = first[1] if first is not None and first[1] in self.rows else None
        digest = 0 if base is None else self.digests.get(base, 0)
        for last, group in pairwise([None, *members]):
            for key, event_id in self._changes.get(chain, {}).get(group or 0, {}).items():
                old = self._lookup(chain, last, base, key)
                digest += entry_digest(key, event_id) - entry_digest(key, old)
            digest &= _MASK
            if group in self.rows and self.rows[group][2] == chain:
                self.digests[group] = digest

    def _lookup(self, chain: int, last: int | None, base: int | None, key: StateKey) -> str | None:
        # The event at a key just before a group of a chain, whose predecessor there is ``last``.
        spans = [] if last is None else [(chain, last)]
        for place, upto in (*spans, *(() if base is None else self._spans(base))):
            numbers, events = self._history.get(place, {}).get(key, ((), ()))
            found = bisect_right(numbers, upto)
            if found:
                return events[found - 1]
        return None

    def _spans(self, group: int) -> Iterator[tuple[int, int]]:
        # (chain, highest group to read in it), from the top down. A missing row or a cycle ends the walk.
        number: int | None = group
        seen: set[int] = set()  # damaged rows may form a cycle
        while number is not None and number in self.rows and number not in seen:
            seen.add(number)
            chain = self.rows[number][2]
            yield chain, number
            first = self.rows.get(chain)
            number = None if first is None else first[1]
