"""Offsets of the Spark source as vectors, and how the facts between two of them are cut into partitions (pure).

A vector is ``{writer: position}``; facts in ``(start, end]`` are those of every writer above its entry in ``start`` and not
above that in ``end``. A writer that is missing in ``start`` joined after it was taken, so all its facts lie above the lowest
entry (``streams.core.positions.position_of``). This needs vectors that name every writer there was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from streams.core.positions import Stored, linear_position, position_of, positions_to_show

__all__ = ["Bound", "Piece", "Stretch", "Vector", "cut_vector", "pieces", "stretches", "target_vector", "within"]

Vector = dict[str, int]
#: Where the facts of one writer are read: ``(after, upto]``.
Stretch = tuple[int, int]
#: Most partitions of one read.
MOST_PIECES = 10_000


@dataclass(frozen=True, slots=True)
class Bound:
    """Facts of these writers with ``after < token <= upto``."""

    writers: tuple[str, ...]
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What one partition reads; holds everything that an executor needs to find the rows."""

    bounds: tuple[Bound, ...]

    @property
    def after(self) -> int:
        """Below every fact of the piece."""
        return min(bound.after for bound in self.bounds)

    @property
    def upto(self) -> int:
        """No fact of the piece lies above."""
        return max(bound.upto for bound in self.bounds)


def target_vector(stored: Mapping[str, Stored], *, linear: bool) -> Vector:
    """Up to where there are complete facts only: of each writer by itself, or (``linear``) of all of them together.

    A retired writer has nothing pending, so it is as far as the stream.
    """
    common = linear_position(stored.values(), 0)
    shown = positions_to_show(stored, common)
    return {writer: min(at, common) for writer, at in shown.items()} if linear else shown


def cut_vector(start: Mapping[str, int], target: Mapping[str, int], beyond: int | None) -> Vector:
    """Where a batch ends: every writer at its target, but below ``beyond``; no entry is lost or goes back.

    Spark compares offsets as text, so equal vectors are written alike.
    """
    end = dict(start)
    for writer, position in target.items():
        reached = position if beyond is None else min(position, beyond - 1)
        end[writer] = max(reached, start.get(writer, 0))
    return dict(sorted(end.items()))


def stretches(start: Mapping[str, int], end: Mapping[str, int], *, from_zero: bool = False) -> dict[str, Stretch]:
    """What is to be read of each writer that moved; ``from_zero``: a writer that joins begins at 0, not where others are."""
    found = {w: (start.get(w, 0) if from_zero else position_of(start, w), upto) for w, upto in end.items()}
    return {writer: (after, upto) for writer, (after, upto) in found.items() if upto > after}


def within(moved: Mapping[str, Stretch], after: int | None, upto: int | None) -> dict[str, Stretch]:
    """The same stretches, no further than ``(after, upto]``."""
    cut = {
        writer: (first if after is None else max(first, after), last if upto is None else min(last, upto))
        for writer, (first, last) in moved.items()
    }
    return {writer: (first, last) for writer, (first, last) in cut.items() if last > first}


def pieces(moved: Mapping[str, Stretch], cuts: Sequence[int]) -> list[Piece]:
    """The stretches cut behind each token of ``cuts`` (ascending); a token's rows stay together. At most ``MOST_PIECES``."""
    if not moved:
        return []
    lowest, highest = min(first for first, _ in moved.values()), max(last for _, last in moved.values())
    inner = sorted({cut for cut in cuts if lowest < cut < highest})
    step = len(inner) // MOST_PIECES + 1
    edges = [lowest, *inner[step - 1 :: step], highest]
    found = [_piece(within(moved, after, upto)) for after, upto in pairwise(edges)]
    return [piece for piece in found if piece.bounds]


def _piece(moved: Mapping[str, Stretch]) -> Piece:
    by_stretch: dict[Stretch, list[str]] = {}
    for writer, stretch in sorted(moved.items()):
        by_stretch.setdefault(stretch, []).append(writer)
    return Piece(tuple(Bound(tuple(writers), after, upto) for (after, upto), writers in by_stretch.items()))
