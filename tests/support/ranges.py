"""The ranges of a room as they are stored, the places that they are about, and whether all ways of computing them agree."""

from __future__ import annotations

from django.db import connection

from events.integrity.repair import check_room
from events.models import EventVisibility
from events.persist.rebuild_visibility import recomputed_ranges
from events.visibility.ranges import VisibilityRow, in_order
from events.visibility.same_ranges import show_the_same
from tests.support.persisted_rooms import current_state, replayed_state

__all__ = ["accepted_places", "assert_all_ways_agree", "stored_ranges"]

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


def assert_all_ways_agree(room_id: str) -> None:
    """The check finds nothing, the current state is that of its changes, and a rebuild shows the same events."""
    report = check_room(room_id)
    assert report.clean, report.differences
    assert current_state(room_id) == replayed_state(room_id)
    assert show_the_same(stored_ranges(room_id), recomputed_ranges(room_id), accepted_places(room_id))
