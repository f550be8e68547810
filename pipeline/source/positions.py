"""Where a stream is, as the Spark source sees it: stored positions, epoch and life, read over any connection (no Django).

Called in autocommit mode. The epoch is read before the positions: positions of after a restore never stand under the
epoch of before.
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
from streams.reading.rows import stored_positions

__all__ = ["SourcePositions", "known_positions"]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The position of one life of a writer of a recorded stream."""

    position: int
    state: str = ""


@dataclass(frozen=True, slots=True)
class SourcePositions:
    """Stored positions of the writers of one stream, the epoch of the database, and the life of a stream in memory."""

    stored: Mapping[str, Stored]
    epoch: str = ""
    life: str = ""

    def target(self, *, linear: bool) -> Vector:
        """Up to where there are complete facts only; see ``target_vector``."""
        return target_vector(self.stored, linear=linear)


def known_positions(cursor: Any, declaration: StreamDeclaration) -> SourcePositions:
    """What the database says now."""
    cursor.execute(NEWEST_EPOCH)
    row = cursor.fetchone()
    epoch = row[0] if row else ""
    if is_recorded(declaration.name):
        cursor.execute(RECORDED_POSITIONS, recorded_names(declaration.name))
        return SourcePositions({writer: _Recorded(position) for _, writer, position in cursor.fetchall()}, epoch)
    stored = stored_positions(cursor, [declaration.name]).get(declaration.name, {})
    life = max((at.generation for at in stored.values()), default=0) if declaration.in_memory else 0
    return SourcePositions(stored, epoch, f"life {life}" if life else "")
