"""Plans which state groups of a room can be deleted, and which can be merged (pure).

A group is *needed* if it is the state after an event, or the state before an event. A group that is neither needed nor
below a needed group is deleted. A group that is not needed, but lies below a needed group in the same chain, is merged.

A *run* is a sequence of neighbouring groups to merge. They become one group, the *target*, which keeps the newest entry
of each key. The target is the group right above the run. A chain has the ID of its first group as its number. So if a
run starts with the first group of a chain, the target is this first group instead. Example, where each group builds on
the one before, and 4 and 5 are needed:

    1 - 2 - 3 - 4 - 5 - 6      6 is deleted; 2 and 3 are merged into 1

No row is added. A group on which several chains build stays as it is, because each of these chains would need a copy of
its rows. Time and memory are linear in the number of groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class GroupPlace:
    group: int
    prev: int | None
    chain: int


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring groups of one chain to merge into ``target``.

    ``absorbed`` are the groups that disappear, ascending. ``witness`` is the nearest group above that is not merged:
    its state must be the same before and after the merge.
    """

    chain: int
    target: int
    absorbed: tuple[int, ...]
    witness: int

    @property
    def bounds(self) -> tuple[int, int]:
        return min(self.target, self.absorbed[0]), max(self.target, self.absorbed[-1])

    def pieces(self, size: int) -> Iterator[Run]:
        """Splits the run into runs of at most ``size`` groups, in an order that keeps every needed group readable."""
        parts = [self.absorbed[n : n + size] for n in range(0, len(self.absorbed), size)]
        for part in parts if self.target < self.absorbed[0] else reversed(parts):
            yield replace(self, absorbed=part)


@dataclass(frozen=True, slots=True)
class GroupCollection:
    deleted: tuple[int, ...]
    runs: tuple[Run, ...]


def plan_collection(groups: Sequence[GroupPlace], needed: Collection[int]) -> GroupCollection:
    """Plans a garbage collection of a room's state groups.

    ``groups`` are all its groups, ascending.

    Every group in ``needed`` keeps its state.
    """
    below: set[int] = set()
    forked: set[int] = set()
    deleted: list[int] = []
    chains = {place.group: place.chain for place in groups}
    for place in reversed(groups):
        if place.group not in needed and place.group not in below:
            deleted.append(place.group)
        elif place.prev is not None:
            below.add(place.prev)
            if chains.get(place.prev) != place.chain:
                forked.add(place.prev)
    dead = set(deleted)
    by_chain: dict[int, list[int]] = {}
    for place in groups:
        if place.group not in dead:
            by_chain.setdefault(place.chain, []).append(place.group)
    fixed = forked.union(needed)
    runs = [run for chain, members in by_chain.items() for run in _runs(chain, members, fixed)]
    return GroupCollection(tuple(deleted), tuple(runs))


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
