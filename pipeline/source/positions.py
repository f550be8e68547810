"""Reads stored positions, epoch and generation of a stream over any connection, for the Spark source. Needs no Django.

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
    """The position of a writer in a recorded stream.

    A writer of a foreign server counts from 0 again whenever its process restarts. So the recorded stream has a new
    writer for each start of the process.
    """

    position: int
    state: str = ""


@dataclass(frozen=True, slots=True)
class SourcePositions:
    """The stored positions of a stream's writers, with the epoch of the database.

    For a stream in memory, ``life`` names the stream's generation. For other streams, ``life`` is empty. ``given_out``
    is the last value that the stream's sequence gave out, or None if this value cannot be known.
    """

    stored: Mapping[str, Stored]
    epoch: str = ""
    life: str = ""
    given_out: int | None = None

    def target(self, *, linear: bool) -> Vector:
        """Returns the vector up to which all facts are complete. ``target_vector`` explains ``linear``."""
        return target_vector(self.stored, linear=linear)


def known_positions(cursor: Any, declaration: StreamDeclaration) -> SourcePositions:
    """Returns the stored positions of a stream, with the epoch and the stream's generation.

    The source does not look for itself. The checkpoint of a query lies in files, which outlive a crash of the server.

    No position in the result is above the value of the stream's sequence.
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
    # On a standby a sequence may be lower than positions that the primary has announced.
    cursor.execute("SELECT pg_is_in_recovery()")
    (is_standby,) = cursor.fetchone()
    return SourcePositions(stored, epoch, f"life {life}" if life else "", None if is_standby else given_out)
