"""Computes the first state of a process on a stream from what the database holds (pure).

The comments and docstrings here name these steps:

1. A sequence that lies below the largest ID in the tables is moved up to that ID, never down.
2. A stored position above the sequence as it was found refuses the start: two streams share a name, or a backup was restored.
3. Stored positions of names that are no longer writers are dropped. A name that comes back counts as new.
4. Our own position is the sequence's last value: all IDs below were reserved by an earlier holder of the name, or by others.
   True only if no process holds the name and no transaction of it is open, which ``streams.writing.lease`` proves.
5. The linear position is the minimum of all positions. Without any, it is the largest ID in the tables, at least 1.
6. Rows at or above it are done: gapless runs move it up, and our own rows repair a position that was stored too low.
7. Writers without a position enter at the linear position: at the present, not at 0.
8. The largest of all these is the highest ID known, and the position that this process may claim while idle.

``streams.writing.writer`` reads the input from the database. The output is the tracker's first state, and what must be
repaired. All numbers are positive here, also for backward streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from streams.core.tracker import PositionTracker, TrackerState
from streams.errors import SequenceBehind

__all__ = ["StreamFindings", "StreamRecovery", "recover", "sequence_repair"]


@dataclass(frozen=True, slots=True)
class StreamFindings:
    """The values that were read from the database about one stream.

    ``sequence_value`` is the last value that the sequence gave out, or one less than its start if it never did.
    ``writers`` are the configured (not retired) writers, or None if any process may write, without an order.
    ``empty_position`` is the position of the stream without facts: 0 for one in memory.
    """

    stream: str
    table_maximum: int
    sequence_value: int
    stored: Mapping[str, int]
    writers: Sequence[str] | None
    empty_position: int = 1


@dataclass(frozen=True, slots=True)
class StreamRecovery:
    """The state of one process that starts on a stream, before it has read the rows above the linear position."""

    set_sequence_to: int | None
    dropped_writers: tuple[str, ...]
    linear: int
    positions: Mapping[str, int]
    own_name: str | None

    def tracker(self, rows: Iterable[tuple[str, int]], findings: StreamFindings) -> PositionTracker:
        """Returns the tracker, after steps 6 to 8. ``rows`` are (writer, ID) of all tables at or above ``linear``, ascending."""
        own = self.positions.get(self.own_name, 0) if self.own_name is not None else 0
        real = max([findings.table_maximum, *findings.stored.values(), findings.empty_position])
        tracker = PositionTracker(TrackerState(self.linear, self.positions, self.own_name, own, real))
        tracker.replay(rows, findings.writers or ())
        return tracker


def sequence_repair(findings: StreamFindings) -> int | None:
    """Does steps 1 and 2. Returns the value to move the sequence to, or None if it is right.

    Raises ``SequenceBehind`` if a stored position lies above the sequence as it was found.
    """
    worst = max(findings.stored.items(), key=lambda item: item[1], default=("", 0))
    if worst[1] > findings.sequence_value:
        raise SequenceBehind(
            f"Stream {findings.stream}: writer {worst[0]!r} has stored position {worst[1]}, but the sequence is at "
            f"{findings.sequence_value}. Either two streams share a name or the sequence was restored from an older backup. "
            f"If the tables are right, run: manage.py check_streams --repair"
        )
    return findings.table_maximum if findings.table_maximum > findings.sequence_value else None


def recover(findings: StreamFindings, own_name: str | None) -> StreamRecovery:
    """Does steps 1 to 5. ``own_name`` is None for a process that only reads the stream. Raises ``SequenceBehind``."""
    move_to = sequence_repair(findings)
    sequence = move_to if move_to is not None else findings.sequence_value
    if findings.writers is None:
        linear = max([*findings.stored.values(), findings.table_maximum, findings.empty_position])
        return StreamRecovery(move_to, (), linear, {own_name: linear} if own_name else {}, own_name)
    dropped = tuple(sorted(set(findings.stored) - set(findings.writers)))
    positions = {writer: at for writer, at in findings.stored.items() if writer not in dropped}
    is_writer = own_name is not None and own_name in findings.writers
    if is_writer and own_name is not None:
        positions[own_name] = max(sequence, findings.empty_position)
    linear = min(positions.values()) if positions else max(findings.table_maximum, findings.empty_position)
    return StreamRecovery(move_to, dropped, linear, positions, own_name if is_writer else None)
