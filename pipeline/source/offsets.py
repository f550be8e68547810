"""Offsets of the Spark source as vectors, and the division of the facts between two offsets into partitions (pure).

A vector is ``{writer: position}``. The facts in ``(start, end]`` are those of each writer above its entry in ``start``
and up to its entry in ``end``. Vectors are assumed to name every writer that there was when they were taken. So a
writer that is missing in ``start`` joined later, and all its facts lie above the lowest entry
(``streams.core.positions.position_of``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from streams.core.positions import Stored, linear_position, position_of, positions_to_show

__all__ = ["Bound", "PartitionRange", "Range", "Vector", "cut_vector", "pieces", "stretches", "target_vector", "within"]

Vector = dict[str, int]
#: The range of one writer's facts to read: ``(after, upto]``.
Range = tuple[int, int]
#: Maximum number of partitions of one read.
MOST_PIECES = 10_000


@dataclass(frozen=True, slots=True)
class Bound:
    """The facts of some writers with ``after < token <= upto``."""

    writers: tuple[str, ...]
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The facts of one partition. It contains all that an executor needs to find the rows."""

    bounds: tuple[Bound, ...]

    @property
    def after(self) -> int:
        """Returns the lowest bound. All tokens of the partition are above it."""
        return min(bound.after for bound in self.bounds)

    @property
    def upto(self) -> int:
        """Returns the highest bound. No token of the partition is above it."""
        return max(bound.upto for bound in self.bounds)


def target_vector(stored: Mapping[str, Stored], *, linear: bool) -> Vector:
    """Returns the vector up to which all facts are complete.

    An entry is the position of the writer itself. If ``linear``, no entry is above the linear position. A retired
    writer has nothing pending, so its entry is at least the linear position.
    """
    common = linear_position(stored.values(), 0)
    shown = positions_to_show(stored, common)
    return {writer: min(at, common) for writer, at in shown.items()} if linear else shown


def cut_vector(start: Mapping[str, int], target: Mapping[str, int], beyond: int | None) -> Vector:
    """Returns the vector at which a batch ends: ``target``, with each writer limited to below the token ``beyond``.

    No writer of ``start`` is missing in the result or goes back. Writers are sorted, because Spark compares offsets as
    text.
    """
    end = dict(start)
    for writer, position in target.items():
        reached = position if beyond is None else min(position, beyond - 1)
        end[writer] = max(reached, start.get(writer, 0))
    return dict(sorted(end.items()))


def stretches(start: Mapping[str, int], end: Mapping[str, int], *, from_zero: bool = False) -> dict[str, Range]:
    """Returns the ranges of facts to read, one for each writer that moved.

    A writer that is missing in ``start`` begins at the lowest entry of ``start``. If ``from_zero``, it begins at 0.
    """
    found = {w: (start.get(w, 0) if from_zero else position_of(start, w), upto) for w, upto in end.items()}
    return {writer: (after, upto) for writer, (after, upto) in found.items() if upto > after}


def within(moved: Mapping[str, Range], after: int | None, upto: int | None) -> dict[str, Range]:
    """Returns the ranges in ``moved`` limited to ``(after, upto]``. Ranges that are then empty are left out."""
    cut = {
        writer: (first if after is None else max(first, after), last if upto is None else min(last, upto))
        for writer, (first, last) in moved.items()
    }
    return {writer: (first, last) for writer, (first, last) in cut.items() if last > first}


def pieces(moved: Mapping[str, Range], cuts: Sequence[int]) -> list[PartitionRange]:
    """Divides the ranges in ``moved`` after each token of ``cuts``. The rows of a token stay together.

    If there would be more than ``MOST_PIECES`` pieces, only every n-th token of ``cuts`` is used.
    """
    if not moved:
        return []
    lowest, highest = min(first for first, _ in moved.values()), max(last for _, last in moved.values())
    inner = sorted({cut for cut in cuts if lowest < cut < highest})
    step = len(inner) // MOST_PIECES + 1
    edges = [lowest, *inner[step - 1 :: step], highest]
    found = [_piece(within(moved, after, upto)) for after, upto in pairwise(edges)]
    return [piece for piece in found if piece.bounds]


def _piece(moved: Mapping[str, Range]) -> PartitionRange:
    by_stretch: dict[Range, list[str]] = {}
    for writer, stretch in sorted(moved.items()):
        by_stretch.setdefault(stretch, []).append(writer)
    return PartitionRange(tuple(Bound(tuple(writers), after, upto) for (after, upto), writers in by_stretch.items()))
