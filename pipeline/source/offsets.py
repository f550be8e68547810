"""Computes the vectors at which micro-batches end, and divides the facts between two vectors into partitions (pure).

A vector maps each writer of a stream to a position. Offsets of the Spark source are such vectors. For each writer, the
facts between the vectors ``start`` and ``end`` are those above the writer's position in ``start`` and up to its
position in ``end``. A vector must name every writer that existed when the vector was read. So if a writer is missing in
``start``, it joined the stream later, and all its facts are above the lowest position in ``start``
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
    """A range of facts: the facts of ``writers`` with ``after < token <= upto``."""

    writers: tuple[str, ...]
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The facts of one partition. An executor needs no other data to find the rows."""

    bounds: tuple[Bound, ...]

    @property
    def after(self) -> int:
        """Returns the lowest ``after`` of the bounds. All tokens of the partition are above this value."""
        return min(bound.after for bound in self.bounds)

    @property
    def upto(self) -> int:
        """Returns the highest ``upto`` of the bounds. No token of the partition is above this value."""
        return max(bound.upto for bound in self.bounds)


def target_vector(stored: Mapping[str, Stored], *, linear: bool) -> Vector:
    """Returns the vector up to which all facts are complete. ``stored`` has the stored position of each writer.

    The vector has each writer's own position. If ``linear`` is true, positions above the linear position are lowered to
    it. A retired writer has no open transaction, so its position in the vector is at least the linear position.
    """
    common = linear_position(stored.values(), 0)
    shown = positions_to_show(stored, common)
    return {writer: min(at, common) for writer, at in shown.items()} if linear else shown


def cut_vector(start: Mapping[str, int], target: Mapping[str, int], beyond: int | None) -> Vector:
    """Returns the vector at which a batch ends: ``target``, but with every position below the token ``beyond``.

    If ``beyond`` is None, no position is lowered. The result has all writers of ``start``. No position in the result is
    below the writer's position in ``start``. Writers are sorted by name, because Spark compares offsets as text.
    """
    end = dict(start)
    for writer, position in target.items():
        reached = position if beyond is None else min(position, beyond - 1)
        end[writer] = max(reached, start.get(writer, 0))
    return dict(sorted(end.items()))


def stretches(start: Mapping[str, int], end: Mapping[str, int], *, from_zero: bool = False) -> dict[str, Range]:
    """Returns writer -> (after, upto), the range of facts to read.

    Only writers whose position is higher in ``end`` than in ``start`` are in the result.

    If a writer is missing in ``start``, its range begins at the lowest position in ``start``, or at 0 if ``from_zero``
    is true.
    """
    found = {w: (start.get(w, 0) if from_zero else position_of(start, w), upto) for w, upto in end.items()}
    return {writer: (after, upto) for writer, (after, upto) in found.items() if upto > after}


def within(moved: Mapping[str, Range], after: int | None, upto: int | None) -> dict[str, Range]:
    """Limits each range in ``moved`` to ``(after, upto]``. Returns the ranges that are not empty."""
    cut = {
        writer: (first if after is None else max(first, after), last if upto is None else min(last, upto))
        for writer, (first, last) in moved.items()
    }
    return {writer: (first, last) for writer, (first, last) in cut.items() if last > first}


def pieces(moved: Mapping[str, Range], cuts: Sequence[int]) -> list[PartitionRange]:
    """Divides the ranges in ``moved`` into partitions.

    Each partition ends with a token in ``cuts``. The last partition ends with the highest token of the ranges.

    All rows of a token are in one partition. If there would be more than ``MOST_PIECES`` partitions, only every n-th
    token in ``cuts`` is used.
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
