"""Reads stored positions, epoch and generation of a stream over any connection, for the Spark source (no Django).

The connection must be in autocommit mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.source.offsets import Vector, target_vector
from streams.core.declaration import StreamDeclaration
from streams.core.positions import Stored
from streams.core.queries import NEWEST_EPOCH
from streams.core.recorded import RECORDED_POSITIONS, is_recorded, recorded_names
from streams.reading.possible_positions import positions_and_sequence

__all__ = ["SourcePositions", "known_positions"]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The position of a recorded writer in one of its lives.

    The positions of a foreign writer restart with each of its lives.
    """

    position: int
    state: str = ""


@dataclass(frozen=True, slots=True)
class SourcePositions:
    """Stored positions of a stream's writers, and the database's epoch.

    ``life`` is the generation of a stream in memory, otherwise empty. ``given_out`` is the last value that the stream's
    sequence gave out, or null if that cannot be known.
    """

    stored: Mapping[str, Stored]
    epoch: str = ""
    life: str = ""
    given_out: int | None = None

    def target(self, *, linear: bool) -> Vector:
        """Returns the vector up to which all facts are complete (see ``target_vector``)."""
        return target_vector(self.stored, linear=linear)


def known_positions(cursor: Any, declaration: StreamDeclaration) -> SourcePositions:
    """Returns the positions that are stored now, with epoch and generation.

    No position is above the value of the stream's sequence.
    """
    # The epoch comes first. If the database is restored between the two queries, the offset has the old epoch, and the next
    # batch is refused. In the other order, positions of the old database would get the new epoch and be accepted.
    cursor.execute(NEWEST_EPOCH)
    row = cursor.fetchone()
    epoch = row[0] if row else ""
    if is_recorded(declaration.name):
        cursor.execute(RECORDED_POSITIONS, recorded_names(declaration.name))
        return SourcePositions({writer: _Recorded(position) for _, writer, position in cursor.fetchall()}, epoch)
    stored, given_out = positions_and_sequence(cursor, declaration)
    life = max((at.generation for at in stored.values()), default=0) if declaration.in_memory else 0
    return SourcePositions(stored, epoch, f"life {life}" if life else "", None if _is_standby(cursor) else given_out)


def _is_standby(cursor: Any) -> bool:
    """Returns true on a standby, where a sequence may be behind the positions that the primary has shown."""
    cursor.execute("SELECT pg_is_in_recovery()")
    return bool(cursor.fetchone()[0])
