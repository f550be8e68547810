"""Which state groups can go, and how those that stay do without them (pure).

A group is *needed* when an event has it as its state, or as the state before it. A group that is not, and that nothing is
built on, goes. Others that are not needed stand below needed ones in the same chain: runs of them are merged, the newest entry of
each key kept, into the group right above the run, or, where a run begins its chain, into the first one, because the chain has
its name. Nothing is ever stored in full instead: rows are deleted or moved, none is added. A group that several chains build on
stays as it is, since each of them would need a copy of its rows.

Takes time and memory linear in the number of groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

__all__ = ["GroupCollection", "GroupPlace", "Run", "collection_of"]


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A stored group among the others."""

    group: int
    prev: int | None
    chain: int


@dataclass(frozen=True, slots=True)
class Run:
    """Groups of one chain, ascending, that are merged into ``target``; ``witness`` is the needed group nearest above."""

    chain: int
    target: int
    absorbed: tuple[int, ...]
    witness: int

    @property
    def bounds(self) -> tuple[int, int]:
        """Lowest and highest group whose rows are merged, the target's included."""
        return min(self.target, self.absorbed[0]), max(self.target, self.absorbed[-1])

    def pieces(self, size: int) -> Iterator[Run]:
        """The run in parts that can be merged one after the other; all groups stay readable in between."""
        parts = [self.absorbed[n : n + size] for n in range(0, len(self.absorbed), size)]
        for part in parts if self.target < self.absorbed[0] else reversed(parts):
            yield replace(self, absorbed=part)


@dataclass(frozen=True, slots=True)
class GroupCollection:
    """``gone`` in the order in which they can be deleted: what is built on a group comes before it."""

    gone: tuple[int, ...]
    runs: tuple[Run, ...]


def collection_of(groups: Sequence[GroupPlace], needed: Collection[int]) -> GroupCollection:
    """What can be done in a room whose groups these are, ascending."""
    below: set[int] = set()
    forked: set[int] = set()
    gone: list[int] = []
    chains = {place.group: place.chain for place in groups}
    for place in reversed(groups):
        if place.group not in needed and place.group not in below:
            gone.append(place.group)
        elif place.prev is not None:
            below.add(place.prev)
            if chains.get(place.prev) != place.chain:
                forked.add(place.prev)
    dead = set(gone)
    by_chain: dict[int, list[int]] = {}
    for place in groups:
        if place.group not in dead:
            by_chain.setdefault(place.chain, []).append(place.group)
    fixed = forked.union(needed)
    runs = [run for chain, members in by_chain.items() for run in _runs(chain, members, fixed)]
    return GroupCollection(tuple(gone), tuple(runs))


def _runs(chain: int, members: Sequence[int], fixed: Collection[int]) -> Iterator[Run]:
    loose: list[int] = []
    for group in members:
        if group not in fixed:
            loose.append(group)
            continue
        if loose and loose[0] == chain:
            if loose[1:]:
                yield Run(chain, chain, tuple(loose[1:]), group)
        elif loose:
            yield Run(chain, group, tuple(loose), group)
        loose = []
