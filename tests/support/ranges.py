"""The ranges of a room as they are stored, and the places that they are about."""

from __future__ import annotations

from django.db import connection

from events.models import EventVisibility
from events.visibility.ranges import VisibilityRow, in_order

__all__ = ["accepted_places", "stored_ranges"]

_ACCEPTED = """
SELECT stream_ordering FROM events_event
WHERE room_id = %s AND NOT outlier AND NOT soft_failed AND rejected_reason IS NULL ORDER BY stream_ordering
"""


def stored_ranges(room_id: str) -> list[VisibilityRow]:
    """The ranges that are stored, by stream positions."""
    rows = EventVisibility.objects.filter(room_id=room_id)
    return in_order(VisibilityRow(*row) for row in rows.values_list("user_id", "kind", "first", "last"))


def accepted_places(room_id: str) -> list[int]:
    """The positions of a room's accepted events, ascending."""
    with connection.cursor() as cursor:
        cursor.execute(_ACCEPTED, [room_id])
        return [place for (place,) in cursor.fetchall()]
