"""Computes a stream's linear position, and each writer's position as readers see it, from stored positions (pure).

Assumes that the positions of a stream were read in one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import compress, repeat
from operator import lt
from typing import Protocol

#: State of a writer that writes (``streams.models.WriterState``).
ACTIVE = "active"
#: State of a writer that no longer counts for the linear position (``streams.models.WriterState``).
RETIRED = "retired"


class Stored(Protocol):
    """A stored position of one writer, as ``streams.reading.rows.stored_positions`` returns it."""

    @property
    def position(self) -> int: ...
    @property
    def state(self) -> str: ...


def linear_position(positions: Iterable[Stored], empty_position: int = 1) -> int:
    """Returns the position up to which every fact of every writer is complete.

    This is the lowest of the positions of the writers that are not retired. If all writers are retired, everything
    stored is complete, so the highest position is returned. For a stream without writers, returns ``empty_position``:
    1, or 0 for a stream in memory.
    """
    known = list(positions)
    active = [stored.position for stored in known if stored.state != RETIRED]
    return min(active) if active else max((stored.position for stored in known), default=empty_position)


def positions_to_show(stored: Mapping[str, Stored], linear: int) -> dict[str, int]:
    """Returns the position of each writer as readers see it.

    A retired writer has nothing pending, so the position shown for it is never below the linear position.
    """
    return {w: max(at.position, linear) if at.state == RETIRED else at.position for w, at in stored.items()}


def active_and_retired(stored: Mapping[str, Stored]) -> tuple[dict[str, int], dict[str, int]]:
    retired = {writer: at.position for writer, at in stored.items() if at.state == RETIRED}
    return {writer: at.position for writer, at in stored.items() if writer not in retired}, retired


def position_of(have: Mapping[str, int], writer: str) -> int:
    """Returns the position up to which a reader has read the facts of a writer.

    ``have`` maps writers to the reader's positions. If the writer is new to the reader, returns the lowest of these
    positions, or 0 if the reader has no position.
    """
    at = have.get(writer)
    return min(have.values(), default=0) if at is None else at


def positions_of(have: Mapping[str, int], writers: Iterable[str]) -> list[int]:
    """Returns the result of ``position_of`` for each of the writers, in order.

    Uses no loop in Python code, because large sites call this function for thousands of readers a second.
    """
    return list(map(have.get, writers, repeat(min(have.values(), default=0))))


def lowest_unread(have: Mapping[str, int], upto: Mapping[str, int]) -> int | None:
    """Returns the lowest position from which a reader must go on reading to reach ``upto``.

    ``have`` maps writers to the reader's positions. Writers whose facts up to ``upto`` the reader has read are left
    out. Returns None if the reader has read the facts of all writers up to ``upto``.
    """
    mine = positions_of(have, upto)
    return min(compress(mine, map(lt, mine, upto.values())), default=None)
