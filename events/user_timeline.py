"""A room as one user sees it: the newest events by the ranges of visibility, in one indexed query a page.

Two kinds of events are looked at once more by the rule, because ranges do not tell: redactions, which are shown only where they
redact something, and calls, which do not ring in public rooms.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections

from events.errors import NotReadable, UnknownRoom
from events.explaining import Access, Explanation, explain_visibility
from events.models import Room
from events.reading import TimelineEntry, timeline_place

__all__ = ["timeline_of"]

#: A page of what the user sees, newest first, from ``events_event_timeline``; ranges are found by room, user and position.
_PAGE = """
SELECT e.event_id, e.stream_ordering, e.topological_ordering, e.type FROM events_event e
WHERE e.room_id = %(room)s AND (e.topological_ordering, e.stream_ordering) < (%(topological)s, %(stream)s)
  AND NOT e.outlier AND NOT e.soft_failed AND e.rejected_reason IS NULL
  AND e.type NOT IN ('m.room.aliases', 'org.matrix.dummy_event')
  AND (%(cut)s::bigint IS NULL OR e.stream_ordering <= %(cut)s)
  AND (
    EXISTS (
      SELECT FROM events_eventvisibility v WHERE v.room_id = e.room_id AND v.user_id IS NULL
      AND (v.kind = 'world' OR (v.kind = 'shared' AND NOT %(peeking)s))
      AND e.stream_ordering >= v.first AND (v.last IS NULL OR e.stream_ordering <= v.last)
    ) OR (
      EXISTS (
        SELECT FROM events_eventvisibility v WHERE v.room_id = e.room_id AND v.user_id = %(user)s
        AND v.kind IN ('joined', 'invited', 'shown')
        AND e.stream_ordering >= v.first AND (v.last IS NULL OR e.stream_ordering <= v.last)
      ) AND NOT EXISTS (
        SELECT FROM events_eventvisibility v WHERE v.room_id = e.room_id AND v.user_id = %(user)s
        AND v.kind = 'hidden' AND v.first = e.stream_ordering
      )
    )
  )
ORDER BY e.topological_ordering DESC, e.stream_ordering DESC
LIMIT %(limit)s
"""
_ASKED_AGAIN = ("m.room.redaction", "m.call.invite")


def timeline_of(
    user_id: str, room_id: str, limit: int = 100, before: str | None = None, using: str = "default"
) -> Sequence[TimelineEntry]:
    """The last ``limit`` events of a room that the user sees, newest first, below the token ``before``.

    Those who left see nothing after their leave. Raises ``UnknownRoom``, ``NotReadable`` and ``BadToken``.
    """
    topological, stream = timeline_place(before)
    access = _access(user_id, room_id, using)
    found: list[TimelineEntry] = []
    while len(found) < limit:
        wanted = limit - len(found)
        where: dict[str, str | int | None] = {"room": room_id, "user": user_id, "limit": wanted}
        where |= {"peeking": access.peeking, "cut": access.cut, "topological": topological, "stream": stream}
        with connections[using].cursor() as cursor:
            cursor.execute(_PAGE, where)
            rows = cursor.fetchall()
        hidden = _hidden(user_id, [event_id for event_id, _, _, kind in rows if kind in _ASKED_AGAIN], using)
        found += [TimelineEntry(*row[:3]) for row in rows if row[0] not in hidden]
        if len(rows) < wanted:
            break
        _, stream, topological, _ = rows[-1]
    return found


def _access(user_id: str, room_id: str, using: str) -> Access:
    room = Room.objects.using(using).filter(room_id=room_id).first()
    if room is None:
        raise UnknownRoom(f"There is no room {room_id}.")
    if room.visibility_unresolved or room.current_state_unresolved:
        raise NotReadable(f"Who sees what in {room_id} is not known: events below others are missing.")
    access = Access.of(user_id, room_id, using)
    if not access.readable:
        raise NotReadable(f"{user_id} may not read {room_id}: not a member, and the room is not world readable.")
    return access


def _hidden(user_id: str, event_ids: Sequence[str], using: str) -> set[str]:
    """Those that the rule hides after all."""
    answers = explain_visibility(user_id, event_ids, using)
    return {answer.event_id for answer in answers if isinstance(answer, Explanation) and not answer.allowed}
