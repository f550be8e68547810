"""What stored positions say together (pure): the linear position of a stream, and where each writer is as others see it.

Assumes that the positions of a stream were read in one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

__all__ = [
    "ACTIVE",
    "DRAINING",
    "RETIRED",
    "Stored",
    "active_and_retired",
    "linear_position",
    "lowest_unread",
    "position_of",
    "positions_to_show",
]

#: State of a writer that writes (``streams.models.WriterState``).
ACTIVE = "active"
#: State of a writer that takes no part in the linear position any more (``streams.models.WriterState``).
RETIRED = "retired"
#: State of a writer on its way out: it counts until what it has open is complete.
DRAINING = "draining"


class Stored(Protocol):
    """A stored position of one writer, as ``streams.reading.rows.stored_positions`` gives it."""

    @property
    def position(self) -> int: ...
    @property
    def state(self) -> str: ...


def linear_position(positions: Iterable[Stored], empty_position: int = 1) -> int:
    """Up to where every fact of any writer is complete: the minimum over the writers that are not retired.

    With all writers retired everything stored is complete: the maximum. A stream without writers is where it is empty:
    at 1, or at 0 when it is in memory.
    """
    known = list(positions)
    active = [stored.position for stored in known if stored.state != RETIRED]
    return min(active) if active else max((stored.position for stored in known), default=empty_position)


def positions_to_show(stored: Mapping[str, Stored], linear: int) -> dict[str, int]:
    """Where each writer is for those who follow: a retired one has nothing pending, so it is as far as the stream."""
    return {w: max(one.position, linear) if one.state == RETIRED else one.position for w, one in stored.items()}


def active_and_retired(stored: Mapping[str, Stored]) -> tuple[dict[str, int], dict[str, int]]:
    """Positions of the writers that take part in the linear position, and of those that do not any more."""
    retired = {writer: one.position for writer, one in stored.items() if one.state == RETIRED}
    return {writer: one.position for writer, one in stored.items() if writer not in retired}, retired


def position_of(have: Mapping[str, int], writer: str) -> int:
    """The reader's position for a writer; for one that it has not met, the lowest that it has."""
    at = have.get(writer)
    return min(have.values(), default=0) if at is None else at


def lowest_unread(have: Mapping[str, int], upto: Mapping[str, int]) -> int | None:
    """The lowest of the reader's positions that are below the writer's; None: it has read everything."""
    return min((mine for writer, at in upto.items() if (mine := position_of(have, writer)) < at), default=None)
