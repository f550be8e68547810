"""A room as one user sees it, page by page: the newest events by ``events.visible_sql``, in one indexed query a page."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections

from events.on_read import access_parameters, readable_room
from events.reading import TimelineEntry, timeline_place
from events.visible_sql import ACCESS_ROWS, sees

__all__ = ["timeline_of"]

#: A page of what the user sees, newest first, from ``events_event_timeline``; ranges are found by room, user and position.
_PAGE = f"""
SELECT page.* FROM {ACCESS_ROWS} a CROSS JOIN LATERAL (
  SELECT e.event_id, e.stream_ordering, e.topological_ordering FROM events_event e
  WHERE e.room_id = a.room_id AND (e.topological_ordering, e.stream_ordering) < (%(topological)s, %(stream)s)
  AND {sees()}
  ORDER BY e.topological_ordering DESC, e.stream_ordering DESC
  LIMIT %(limit)s
) page
"""


def timeline_of(
    user_id: str, room_id: str, limit: int = 100, before: str | None = None, using: str = "default"
) -> Sequence[TimelineEntry]:
    """The last ``limit`` events of a room that the user sees, newest first, below the token ``before``.

    Those who left see nothing after their leave. Raises ``UnknownRoom``, ``NotReadable`` and ``BadToken``.
    """
    topological, stream = timeline_place(before)
    access = readable_room(user_id, room_id, using)
    where = access_parameters(user_id, [access]) | {"topological": topological, "stream": stream, "limit": limit}
    with connections[using].cursor() as cursor:
        cursor.execute(_PAGE, where)
        return [TimelineEntry(*row) for row in cursor.fetchall()]
