"""Rebuilds the state groups of a room with as few rows as the chain scheme allows (pure).

Groups are read in the order of their IDs. They may have been stored by this program, by an older version of it, or by
another program. Each needed state is stored once. It is stored on top of that one of a few new groups which needs the
fewest rows and hops. Groups that are not needed are read, and get no new group. ``state.groups.deltas`` builds the new
groups, so its limits on reading a group hold.

The group of an accepted state event stays directly on top of the group with the state before the event. Code that needs
the state before an event reads the group below.

Equal states are found by digests. The digest of a state is a sum over its entries. Memory grows with the number of new
rows, and time with the number of old rows.

    old   1 (full) ◄─ 2 {topic: T1} ◄─ 3 {topic: T2, name: N}     1 and 3 are needed
    new   0 (full) ◄─ 1 {topic: T2, name: N}
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import blake2b

from state.errors import StepTooLarge
from state.groups.deltas import GroupBuilder, StateKey

_LATEST = 4
"""A state that builds on no group is compared with this many of the latest groups."""
_MASK = 2**64 - 1
Changes = Mapping[StateKey, str | None]


class Need(Enum):
    """The reason why a stored group is kept."""

    NOTHING = auto()
    """It is kept only while other groups build on it."""
    STATE = auto()
    """It is the state after an event, or the state before one."""
    STEP = auto()
    """It is the state after an accepted state event. So the group below it must stay the state before this event."""


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Numbers of rows in the tables of groups and of deltas."""

    groups: int
    deltas: int

    @property
    def total(self) -> int:
        return self.groups + self.deltas


@dataclass(frozen=True, slots=True)
class _Place:
    # The state of an old group: ``changes`` on top of the new group ``base``, or of the empty state.
    base: int | None
    changes: Changes


class Compression:
    """The compaction of one room. The caller adds the room's groups in ascending order.

    ``numbers`` maps the ID of each needed old group to the number of its new group.
    """

    def __init__(self) -> None:
        self.builder = GroupBuilder()
        self.numbers: dict[int, int] = {}
        self._places: dict[int, _Place] = {}
        self._digests: dict[int, int] = {}
        self._by_state: dict[int, int] = {}
        self._left_out: dict[int, _Place] = {}
        """Digest -> a state that has no new group yet. Old groups with equal states share one ``_Place``."""
        self._by_step: dict[tuple[int | None, int], int] = {}
        self._latest: deque[int] = deque(maxlen=_LATEST)

    def add_group(self, group: int, prev: int | None, changes: Changes, need: Need) -> None:
        """Adds the next old group, which is ``changes`` on top of the old group ``prev``.

        Raises ``KeyError`` for an unknown ``prev``.
        """
        place = self._place(prev, changes)
        digest = self._digest(place)
        if need is Need.STEP:
            number = self._step(place, digest, changes)
        elif digest in self._by_state:
            number = self._by_state[digest]
        elif need is Need.STATE:
            number = self._state(self._left_out.get(digest, place), digest)
        else:
            self._places[group] = self._left_out.setdefault(digest, place)
            return
        self._places[group] = _Place(number, {})
        if need is not Need.NOTHING:
            self.numbers[group] = number

    def mark_stored(self, ids: Mapping[int, int]) -> None:
        """Records the IDs under which new groups (``{number: ID}``) were stored. Later groups may build on these IDs."""
        self._places.update((group, _Place(number, {})) for number, group in ids.items())

    def end_chains(self) -> None:
        # other transactions may have extended the present chains
        self.builder.end_chains()

    def rows(self) -> WrittenRows:
        kept = self.builder.kept(self.numbers.values())
        return WrittenRows(len(kept), sum(len(self.builder.step(number)[1]) for number in kept))

    def _place(self, prev: int | None, changes: Changes) -> _Place:
        below = _Place(None, {}) if prev is None else self._places[prev]
        whole = {**below.changes, **changes}
        return _Place(below.base, {key: new for key, new in whole.items() if self._old(below.base, key) != new})

    def _old(self, base: int | None, key: StateKey) -> str | None:
        return None if base is None else self.builder.lookup(base, key)

    def _digest(self, place: _Place) -> int:
        digest = 0 if place.base is None else self._digests[place.base]
        for key, new in place.changes.items():
            digest += entry_digest(key, new) - entry_digest(key, self._old(place.base, key))
        return digest & _MASK

    def _step(self, place: _Place, digest: int, changes: Changes) -> int:
        step = place.base, digest
        if step not in self._by_step:
            made = place.changes or changes  # a state event has a row even if it does not change the state
            number = self._by_step[step] = self._add(place.base, made, digest)
            below = self.builder.step(number)[0]
            if below is not None and below != place.base:
                below = self.builder.original(below)
            if below != place.base:
                raise StepTooLarge(
                    f"a state event changes {len(made)} entries, more than can be stored on top of the state before"
                )
        return self._by_step[step]

    def _state(self, place: _Place, digest: int) -> int:
        # On the shipped rooms, comparing with more groups saved no rows: it led to more hops, and these to full copies.
        state = {} if place.base is None else self.builder.expand(place.base)
        for key, new in place.changes.items():
            if new is None:
                state.pop(key, None)
            else:
                state[key] = new
        near = set(self._latest) if place.base is None else {place.base, self._latest[-1]}
        first = len(self.builder)
        number = self.builder.add_nearest(
            {base: self.builder.expand(base) for base in sorted(near, reverse=True)}, state
        )
        self._record(first, number, digest)
        return number

    def _add(self, base: int | None, changes: Changes, digest: int) -> int:
        first = len(self.builder)
        if base is None:
            number = self.builder.add_full({key: new for key, new in changes.items() if new is not None})
        else:
            number = self.builder.add(base, changes)
        self._record(first, number, digest)
        return number

    def _record(self, first: int, number: int, digest: int) -> None:
        # Groups before ``number`` are full copies that the builder made of older groups.
        for copy in range(first, number):
            self._digests[copy] = self._digests[self.builder.original(copy)]
        self._digests[number] = digest
        self._by_state.setdefault(digest, number)
        self._latest.append(number)


def entry_digest(key: StateKey, event_id: str | None) -> int:
    # Python's hash of tuples does not fit: its sum would not change if two keys swapped their events.
    if event_id is None:
        return 0
    text = "\0".join((*key, event_id)).encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
