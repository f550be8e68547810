"""Plans which state groups of a room can be deleted, and which can be merged (pure).

A group is *needed* if it is the state after an event, or the state before an event. A group that is neither needed nor
below a needed group is deleted. A group that is not needed, but lies below a needed group in the same chain, is merged.

A *run* is a sequence of neighbouring groups to merge. The groups of a run are merged into one group, the *target*,
which keeps the newest entry of each key. The target is the group right above the run. A chain has the ID of its first
group as its number. So if a run starts with the first group of a chain, the target is this first group instead.

The plan stores no group in full. Rows are deleted or moved, and no row is added. A group on which several chains build
stays as it is, because each of these chains would need a copy of its rows.

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
    """Neighbouring groups of one chain to merge into ``target``.

    ``absorbed`` are the groups that disappear, ascending. ``witness`` is the nearest group above that is not merged.
    The merge must not change the state of the witness. So a caller can compare the states of the witness before and
    after the merge.
    """

    chain: int
    target: int
    absorbed: tuple[int, ...]
    witness: int

    @property
    def bounds(self) -> tuple[int, int]:
        """Returns the lowest and the highest group whose rows are merged, including the target."""
        return min(self.target, self.absorbed[0]), max(self.target, self.absorbed[-1])

    def pieces(self, size: int) -> Iterator[Run]:
        """Splits the run into runs of at most ``size`` groups. Yields these in the order in which they must be merged.

        After each of the smaller runs is merged, every needed group can still be read.
        """
        parts = [self.absorbed[n : n + size] for n in range(0, len(self.absorbed), size)]
        for part in parts if self.target < self.absorbed[0] else reversed(parts):
            yield replace(self, absorbed=part)


@dataclass(frozen=True, slots=True)
class GroupCollection:
    """A plan for the groups of one room. ``gone`` are the groups to delete, highest first. ``runs`` are the runs to merge."""

    gone: tuple[int, ...]
    runs: tuple[Run, ...]


def collection_of(groups: Sequence[GroupPlace], needed: Collection[int]) -> GroupCollection:
    """Returns the plan for one room. ``groups`` are all groups of the room, ascending.

    The groups in ``needed`` stay readable.
    """
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
