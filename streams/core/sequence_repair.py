"""Compares a stream's sequence with its tables and its stored positions (pure). All numbers are positive."""

from __future__ import annotations

from collections.abc import Mapping

from streams.errors import SequenceBehind


def sequence_repair(
    stream: str, stored: Mapping[str, int], *, sequence_value: int, table_maximum: int, empty_position: int = 1
) -> int | None:
    """Returns the value to which the sequence must be moved, or None if it can stay. It is never moved down.

    ``stored`` maps writers to their stored positions. ``sequence_value`` is the last value that the sequence gave out, or one
    less than its next one if it gave out none. ``empty_position`` is the position of the stream without facts: 1, or 0 for a
    stream in memory. Raises ``SequenceBehind`` if a stored position lies above the sequence.
    """
    worst = max(stored.items(), key=lambda item: item[1], default=("", 0))
    if worst[1] > sequence_value:
        raise SequenceBehind(
            f"Stream {stream}: writer {worst[0]!r} has stored position {worst[1]}, but the sequence is at {sequence_value}. "
            f"Either two streams share a name or the sequence was restored from an older backup. If the tables are right, run: "
            f"manage.py check_streams --repair"
        )
    # Django's ``reset_sequences`` of a test sets a sequence that a table owns to 1. The position 1 means "empty", so a fact with
    # the ID 1 would never be read.
    least = max(table_maximum, empty_position)
    return least if least > sequence_value else None
