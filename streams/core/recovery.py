"""Computes the state with which a process starts on a stream, from what the database holds (pure).

Comments and docstrings refer to these steps by number:

1. If the sequence lies below the largest ID in the tables, it is moved up to that ID. It is never moved down.
2. If a stored position lies above the value that the sequence had before step 1, the process does not start: two
   streams share a name, or a backup was restored.
3. Stored positions of names that are no longer writers are dropped. If such a name comes back, it counts as new.
4. This process's own position is the sequence's last value. All IDs up to there were reserved by other writers or by an
   earlier holder of the name. ``streams.writing.lease`` has proved before that this earlier holder has no open
   transaction.
5. The linear position is the minimum of all positions. Without positions it is the largest ID in the tables, or the
   position of an empty stream if that is larger.
6. Rows at or above the linear position are complete. As long as their IDs follow each other without a gap, the linear
   position rises with them. Rows of this process's own name repair its own position if that was stored too low.
7. Writers without a position enter at the linear position, so they do not hold it back.
8. The largest of all these positions is the highest known ID. This process may claim it while it is idle.

``streams.writing.writer`` reads the input from the database. The output is the tracker's first state, the value to
which the sequence must be moved, and the writers whose stored positions are dropped. All numbers are positive here,
also for backward streams.
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

    ``sequence_value`` is the last value that the sequence gave out, or one less than its start if it gave out no value.
    ``writers`` are the writers that are not retired. None means that any process may write, without order.
    ``empty_position`` is the position of the stream without facts: 1, or 0 for a stream in memory.
    """

    stream: str
    table_maximum: int
    sequence_value: int
    stored: Mapping[str, int]
    writers: Sequence[str] | None
    empty_position: int = 1


@dataclass(frozen=True, slots=True)
class StreamRecovery:
    """The result of steps 1 to 5: the state before the rows at or above the linear position are read."""

    set_sequence_to: int | None
    dropped_writers: tuple[str, ...]
    linear: int
    positions: Mapping[str, int]
    own_name: str | None

    def tracker(self, rows: Iterable[tuple[str, int]], findings: StreamFindings) -> PositionTracker:
        """Does steps 6 to 8 and returns the tracker.

        ``rows`` are (writer, ID) of all rows with an ID of at least ``linear``, in ascending order.
        """
        own = self.positions.get(self.own_name, 0) if self.own_name is not None else 0
        real = max([findings.table_maximum, *findings.stored.values(), findings.empty_position])
        tracker = PositionTracker(TrackerState(self.linear, self.positions, self.own_name, own, real))
        tracker.replay(rows, findings.writers or ())
        return tracker


def sequence_repair(findings: StreamFindings) -> int | None:
    """Does steps 1 and 2. Returns the value to which the sequence must be moved, or None if it can stay.

    Raises ``SequenceBehind`` if a stored position lies above the value that the sequence had before.
    """
    worst = max(findings.stored.items(), key=lambda item: item[1], default=("", 0))
    if worst[1] > findings.sequence_value:
        raise SequenceBehind(
            f"Stream {findings.stream}: writer {worst[0]!r} has stored position {worst[1]}, but the sequence is at "
            f"{findings.sequence_value}. Either two streams share a name or the sequence was restored from an older backup. "
            f"If the tables are right, run: manage.py check_streams --repair"
        )
    # Django's ``reset_sequences`` of a test sets a sequence that a table owns to 1. The position 1 means "empty", so a fact with
    # the ID 1 would never be read.
    least = max(findings.table_maximum, findings.empty_position)
    return least if least > findings.sequence_value else None


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
