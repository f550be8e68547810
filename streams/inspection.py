"""Whether sequences, tables and stored positions of all streams agree, and moving sequences forward where they do not.

Thin edge for ``manage.py check_streams``: reads with a cursor of a direct connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streams import database, registry
from streams.readers import stored_positions
from streams.stream import Stream

__all__ = ["Finding", "inspect_streams", "repair"]


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
    findings = []
    for stream in registry.all_streams():
        stored = stored_positions(cursor, [stream.name]).get(stream.name, {}).values()
        numbers = (
            stream.sequence_value(cursor),
            stream.table_maximum(cursor),
            max((at.position for at in stored), default=0),
        )
        verdict = _verdict(*numbers)
        finding = Finding(stream.name, *numbers, verdict, "")
        if not finding.well:
            fix = f"SELECT setval('{stream.declaration.sequence}', {finding.wanted_sequence});"
            finding = Finding(stream.name, *numbers, verdict, fix)
        findings.append(finding)
    return findings


def repair(cursor: Any, stream: Stream) -> int:
    """Move the stream's sequence to the greatest of the three numbers; returns it. Safe beside live writers."""
    cursor.execute("BEGIN")
    try:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [database.start_key(stream.name)])
        finding = next(found for found in inspect_streams(cursor) if found.stream == stream.name)
        stream.set_sequence(cursor, finding.wanted_sequence)
        cursor.execute("COMMIT")
    except BaseException:
        cursor.execute("ROLLBACK")
        raise
    return finding.wanted_sequence
