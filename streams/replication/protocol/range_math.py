"""The advance of a reader's cursor (pure): the next range to read, the rows that are due, and the target.

A cursor is a vector token. It covers all facts up to its base. For each named writer, it also covers the writer's facts
up to the writer's entry. The *target* is the token up to which facts may be delivered now. In linear order the target
is the linear position alone; in order per writer it is the whole vector. A row is *due* if the target covers it and the
cursor does not. After reading up to ID p, the next cursor must cover exactly the rows read. If its base were p, it
would skip later rows of slower writers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streams.core.tokens import VectorToken
from streams.replication.protocol.ordering import FollowedRow, View

__all__ = ["ReadRange", "due_rows", "next_range", "target_of"]


@dataclass(frozen=True, slots=True)
class ReadRange:
    """A range to read: rows with after < token <= upto of ``writers``, or of all writers if null.

    The range may also hold rows that are not due. `due_rows` leaves these out.
    """

    after: int
    upto: int
    writers: tuple[str, ...] | None


def target_of(view: View, linear: int, positions: Mapping[str, int]) -> VectorToken:
    """Returns the token up to which facts may be delivered now."""
    return VectorToken(linear) if view is View.LINEAR else VectorToken.of(linear, positions)


def next_range(cursor: VectorToken, target: VectorToken) -> ReadRange | None:
    """Returns the next range to read, or null if the target covers nothing new.

    Up to the target's base, the range has all writers. Above the base, it has only the writers that moved. Otherwise one
    writer that holds the linear position back would cause the rows of all others to be read again.
    """
    if target.base > cursor.base:
        return ReadRange(cursor.base, target.base, None)
    moved = tuple(sorted(w for w in target.entries if target.position_of(w) > cursor.position_of(w)))
    if not moved:
        return None
    return ReadRange(min(cursor.position_of(w) for w in moved), max(target.position_of(w) for w in moved), moved)


def due_rows(rows: Sequence[FollowedRow], cursor: VectorToken, target: VectorToken) -> Sequence[FollowedRow]:
    """Returns the rows that the target covers and the cursor does not, in the given order."""
    if not cursor.entries and not target.entries:  # plain positions: every row read lies between the two
        return rows
    low, high = cursor.highest, target.base
    return [
        row
        for row in rows
        if (row.token > low or not cursor.covers(row.instance, row.token))
        and (row.token <= high or target.covers(row.instance, row.token))
    ]
