"""Checks that no ID and no stored position of a stream is above the value of its sequence, and repairs the sequence.

Used by ``manage.py check_streams`` and ``resync positions``. The functions need a cursor of a connection that bypasses
connection poolers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from streams import registry
from streams.db import driver
from streams.db.sequences import move_forward
from streams.errors import SequenceBusy
from streams.reading.rows import stored_positions
from streams.stream_object import Stream
from streams.writing import lease as leases

__all__ = ["Finding", "inspect_streams", "repair", "repair_streams"]

#: A repair waits this long for a writer that is entering the stream.
_LOCK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of the check for one stream.

    ``sequence`` is the sequence's value, ``highest_in_tables`` the highest ID in the tables, and ``highest_stored`` the
    highest stored position. ``verdict`` is ``ok``, or says which of the other two numbers is above the sequence's
    value. ``fix`` describes how to repair the stream. It is empty if ``verdict`` is ``ok``.
    """

    stream: str
    sequence: int
    highest_in_tables: int
    highest_stored: int
    verdict: str
    fix: str

    @property
    def well(self) -> bool:
        """Returns true if no ID in the tables and no stored position is above the sequence's value."""
        return self.verdict == "ok"

    @property
    def wanted_sequence(self) -> int:
        """Returns the least value that the sequence must have: the greatest of the finding's three numbers."""
        return max(self.sequence, self.highest_in_tables, self.highest_stored)


def _verdict(sequence: int, in_tables: int, stored: int) -> str:
    if stored > sequence:
        return "sequence behind stored position"
    return "sequence behind table" if in_tables > sequence else "ok"


def inspect_streams(cursor: Any) -> list[Finding]:
    """Checks all streams. Returns one finding for each stream."""
    return [_inspect(cursor, stream) for stream in registry.all_streams()]


def _inspect(cursor: Any, stream: Stream) -> Finding:
    stored = stored_positions(cursor, [stream.name]).get(stream.name, {}).values()
    highest_stored = max((at.position for at in stored), default=0)
    in_tables = stream.table_maximum(cursor)
    # The sequence is read last. Otherwise: the check reads 5 from the sequence, a live writer takes 6 and stores
    # position 6, and the check reads this position. The stored position then seems to be above the sequence.
    sequence = stream.sequence_value(cursor)
    verdict = _verdict(sequence, in_tables, highest_stored)
    finding = Finding(stream.name, sequence, in_tables, highest_stored, verdict, "")
    if finding.well:
        return finding
    fix = f"move the sequence {stream.declaration.sequence} to {finding.wanted_sequence}: check_streams --repair"
    return replace(finding, fix=fix)


def repair(cursor: Any, stream: Stream) -> int:
    """Raises the sequence's value at least to the stream's highest ID and highest stored position. Returns the new value.

    Writers may run meanwhile, and no row is removed. Raises ``SequenceBusy`` if the sequence has to move far and open
    transactions prevent the move. Also raises ``SequenceBusy`` if another session holds the lock that a writer takes to
    enter the stream.
    """
    with driver.in_transaction(cursor):
        # Writers that enter the stream hold this lock, because they read the sequence, too.
        if not leases.lock_start(cursor, stream.name, _LOCK_SECONDS):
            holder = leases.describe_lock_holder(cursor, driver.start_key(cursor, stream.name))
            raise SequenceBusy(
                f"Stream {stream.name}: after {_LOCK_SECONDS:g} s another session still holds the lock of those that enter it"
                f"{holder}. Wait for it, or end it with pg_terminate_backend, and run this again."
            )
        move_forward(cursor, stream.declaration.sequence, _inspect(cursor, stream).wanted_sequence)
        return stream.sequence_value(cursor)


def repair_streams(cursor: Any) -> Iterator[tuple[Finding, int]]:
    """Repairs every stream whose finding is not ``ok``. Yields (finding, new value of the sequence) for each repaired stream."""
    for finding in inspect_streams(cursor):
        if not finding.well:
            yield finding, repair(cursor, registry.get(finding.stream))
