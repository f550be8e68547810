"""The advance of a reader's cursor (pure): the next range to read, the rows that are due, and the target.

A cursor is a vector token. It has a *base*, and an *entry* for some writers. It covers all facts up to its base, and
the facts of each of these writers up to the writer's entry. The *target* is the token up to which facts may be
delivered now. In linear order the target is the linear position alone; in order per writer it is the whole vector. A
row is *due* if the target covers the row and the cursor does not. After reading up to ID p, the next cursor must cover
exactly the rows that were read. If its base were p, the reader would skip later rows of slower writers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streams.core.tokens import VectorToken
from streams.replication.protocol.ordering import FollowedRow, View


@dataclass(frozen=True, slots=True)
class ReadRange:
    """A range to read: rows with after < token <= upto of ``writers``, or of all writers if ``writers`` is None.

    The range may also have rows that are not due. `due_rows` leaves these rows out.
    """

    after: int
    upto: int
    writers: tuple[str, ...] | None


def target_of(view: View, linear: int, positions: Mapping[str, int]) -> VectorToken:
    """Returns the target: the token up to which facts may be delivered now. ``positions`` is ``{writer: position}``."""
    return VectorToken(linear) if view is View.LINEAR else VectorToken.of(linear, positions)


def next_range(cursor: VectorToken, target: VectorToken) -> ReadRange | None:
    """Returns the next range to read, or None if the target covers nothing new.

    If the target's base is above the cursor's base, the range has the facts of all writers, and ends at the target's
    base. Otherwise a slow writer holds the base back, and the rows of other writers above the base may have been read
    already. So the range then has only the writers whose position in the target is above their position in the cursor.
    """
    if target.base > cursor.base:
        return ReadRange(cursor.base, target.base, None)
    moved = tuple(sorted(w for w in target.entries if target.position_of(w) > cursor.position_of(w)))
    if not moved:
        return None
    return ReadRange(min(cursor.position_of(w) for w in moved), max(target.position_of(w) for w in moved), moved)


def due_rows(rows: Sequence[FollowedRow], cursor: VectorToken, target: VectorToken) -> Sequence[FollowedRow]:
    """Returns those of ``rows`` that the target covers and the cursor does not cover, in the order of ``rows``."""
    if not cursor.entries and not target.entries:  # plain positions: every row read lies between the two
        return rows
    low, high = cursor.highest, target.base
    return [
        row
        for row in rows
        if (row.token > low or not cursor.covers(row.instance, row.token))
        and (row.token <= high or target.covers(row.instance, row.token))
    ]
