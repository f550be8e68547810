"""Plans which state groups of a room can be deleted, and which can be merged (pure).

A group is *needed* when it is the state after an event, or the state before one. A group that is neither needed nor below
a needed one is deleted. An unneeded group below a needed one in the same chain is merged: a run of such groups becomes one,
which keeps the newest entry of each key. The target is the group right above the run. If the run begins its chain, the
target is the chain's first group, because the chain has its name.

No group is ever stored in full for this. Rows are deleted or moved, and none is added. A group on which several chains
build stays as it is, because each of them would need a copy of its rows.

Time and memory are linear in the number of groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

__all__ = ["GroupCollection", "GroupPlace", "Run", "collection_of"]


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """The position of a stored group: the group below, and the chain that it lies in."""

    group: int
    prev: int | None
    chain: int


@dataclass(frozen=True, slots=True)
class Run:
    """Groups of one chain, ascending, to merge into ``target``. ``witness`` is the nearest needed group above."""

    chain: int
    target: int
    absorbed: tuple[int, ...]
    witness: int

    @property
    def bounds(self) -> tuple[int, int]:
        """Returns the lowest and the highest group whose rows are merged, including the target."""
        return min(self.target, self.absorbed[0]), max(self.target, self.absorbed[-1])

    def pieces(self, size: int) -> Iterator[Run]:
        """Yields the run in parts of at most ``size`` groups, in the order to merge them. All groups stay readable in between."""
        parts = [self.absorbed[n : n + size] for n in range(0, len(self.absorbed), size)]
        for part in parts if self.target < self.absorbed[0] else reversed(parts):
            yield replace(self, absorbed=part)


@dataclass(frozen=True, slots=True)
class GroupCollection:
    """A plan: groups to delete, each after the groups that build on it, and runs to merge."""

    gone: tuple[int, ...]
    runs: tuple[Run, ...]


def collection_of(groups: Sequence[GroupPlace], needed: Collection[int]) -> GroupCollection:
    """Returns the plan for a room's groups, given in ascending order, of which ``needed`` must stay readable."""
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
