"""Whether sequences, tables and stored positions of all streams agree, and moving sequences forward where they do not.

Thin edge for ``manage.py check_streams`` and ``resync positions``: reads with a cursor of a direct connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from streams import registry
from streams.db import driver
from streams.db.sequences import move_forward
from streams.reading.rows import stored_positions
from streams.stream import Stream

__all__ = ["Finding", "inspect_streams", "repair", "repair_streams"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One stream: the three numbers that must be in order, and what to do if they are not."""

    stream: str
    sequence: int
    highest_in_tables: int
    highest_stored: int
    verdict: str
    fix: str

    @property
    def well(self) -> bool:
        """Whether the sequence is ahead of everything that was ever used."""
        return self.verdict == "ok"

    @property
    def wanted_sequence(self) -> int:
        """The greatest of the three: sequences only move forward."""
        return max(self.sequence, self.highest_in_tables, self.highest_stored)


def _verdict(sequence: int, in_tables: int, stored: int) -> str:
    if stored > sequence:
        return "sequence behind stored position"
    return "sequence behind table" if in_tables > sequence else "ok"


def inspect_streams(cursor: Any) -> list[Finding]:
    """Look at every stream, whatever the first one says."""
    return [_inspect(cursor, stream) for stream in registry.all_streams()]


def _inspect(cursor: Any, stream: Stream) -> Finding:
    """The sequence is read last: what a living writer does meanwhile must not look like a fault."""
    stored = stored_positions(cursor, [stream.name]).get(stream.name, {}).values()
    highest_stored = max((at.position for at in stored), default=0)
    in_tables = stream.table_maximum(cursor)
    sequence = stream.sequence_value(cursor)
    verdict = _verdict(sequence, in_tables, highest_stored)
    finding = Finding(stream.name, sequence, in_tables, highest_stored, verdict, "")
    if finding.well:
        return finding
    fix = f"move the sequence {stream.declaration.sequence} to {finding.wanted_sequence}: check_streams --repair"
    return replace(finding, fix=fix)


def repair(cursor: Any, stream: Stream) -> int:
    """Move the stream's sequence to the greatest of the three numbers or beyond; returns where it stands then.

    Safe beside live writers. Raises ``SequenceBusy`` when they do not let go of it for a long jump. No row is removed.
    """
    with driver.in_transaction(cursor):
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [driver.start_key(cursor, stream.name)])
        move_forward(cursor, stream.declaration.sequence, _inspect(cursor, stream).wanted_sequence)
        return stream.sequence_value(cursor)


def repair_streams(cursor: Any) -> Iterator[tuple[Finding, int]]:
    """Moves every sequence forward that is behind; yields what was found of its stream, and where it stands then."""
    for finding in inspect_streams(cursor):
        if not finding.well:
            yield finding, repair(cursor, registry.get(finding.stream))
