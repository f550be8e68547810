"""Where a reader's cursor goes (pure): what to read next, which of the rows are new, and where that leads.

A cursor is a vector token: after all facts up to its base, and after those of each named writer up to its entry. In the
linear view the target is the linear position alone, in the view per writer the whole vector. A row is due if the target covers it
and the cursor does not. The next cursor after reading up to ID p covers exactly the rows read: taking p as the base would
skip rows of slower writers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streams.core.tokens import VectorToken
from streams.replication.protocol.ordering import FollowedRow, View

__all__ = ["Reading", "due_rows", "next_reading", "target_of"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Rows with after < token <= upto, of those writers (None: of all), hold everything between cursor and target."""

    after: int
    upto: int
    writers: tuple[str, ...] | None


def target_of(view: View, linear: int, positions: Mapping[str, int]) -> VectorToken:
    """Up to where facts may be handed out now."""
    return VectorToken(linear) if view is View.LINEAR else VectorToken.of(linear, positions)


def next_reading(cursor: VectorToken, target: VectorToken) -> Reading | None:
    """What to read next; None: the target covers nothing new.

    Up to the target's base all writers at once; above it only writers that moved, so one that holds the linear position back
    does not make all others be read again.
    """
    if target.base > cursor.base:
        return Reading(cursor.base, target.base, None)
    moved = tuple(sorted(w for w in target.entries if target.position_of(w) > cursor.position_of(w)))
    if not moved:
        return None
    return Reading(min(cursor.position_of(w) for w in moved), max(target.position_of(w) for w in moved), moved)


def due_rows(rows: Sequence[FollowedRow], cursor: VectorToken, target: VectorToken) -> Sequence[FollowedRow]:
    """Those of the rows that the target covers and the cursor does not."""
    if not cursor.entries and not target.entries:
        return rows
    low, high = cursor.highest, target.base
    return [
        row
        for row in rows
        if (row.token > low or not cursor.covers(row.instance, row.token))
        and (row.token <= high or target.covers(row.instance, row.token))
    ]
