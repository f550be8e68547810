"""Reads a room without any filter for users: the state at an event, the room's timeline, and the walk through all of it.

If the state is not known, ``StateUnresolved`` is raised; the state is never guessed. Reads use the given database
alias.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections

from events.arguments import can_be_stored, checked_limit
from events.errors import BadToken, UnknownRoom
from events.models import Room
from events.reading.event_json import SERVED, SERVED_JSON, ServedEvent, served
from events.reading.state_at import State, StateAt, state_at

__all__ = ["State", "StateAt", "TimelineEntry", "state_at", "timeline", "timeline_place", "topological_walk"]


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    event_id: str
    stream_ordering: int
    topological_ordering: int

    @property
    def token(self) -> str:
        """The event's place, ``t<topological>-<stream>``. ``timeline(before=…)`` continues right below it."""
        return f"t{self.topological_ordering}-{self.stream_ordering}"


_MOST_ENTRIES = 2**31
_TOKEN = re.compile(r"t([0-9]{1,19})-(-?[0-9]{1,19})")

#: A page of a room, newest first. It reads one range of the index ``events_event_timeline``.
_TIMELINE = """
SELECT event_id, stream_ordering, topological_ordering FROM events_event
WHERE room_id = %(room)s AND (topological_ordering, stream_ordering) < (%(topological)s, %(stream)s)
  AND NOT outlier AND NOT soft_failed AND rejected_reason IS NULL
ORDER BY topological_ordering DESC, stream_ordering DESC
LIMIT %(limit)s
"""

_WALKED_AT_ONCE = 500

#: A page of the walk, oldest first. It reads one range of the index ``events_event_timeline``.
_WALK = f"""
SELECT {SERVED} FROM (
    SELECT * FROM events_event
    WHERE room_id = %(room)s AND (topological_ordering, stream_ordering) > (%(topological)s, %(stream)s)
      AND NOT outlier AND rejected_reason IS NULL
    ORDER BY topological_ordering, stream_ordering LIMIT %(limit)s
) AS e {SERVED_JSON}
ORDER BY e.topological_ordering, e.stream_ordering
"""


def timeline(
    room_id: str, limit: int = 100, before: str | None = None, using: str = "default"
) -> Sequence[TimelineEntry]:
    """Returns at most ``limit`` accepted events of a room below ``before``, newest first by (topological, stream).

    Outliers, rejected and soft-failed events are left out. Raises ``UnknownRoom``, ``BadToken`` and ``InvalidQuery``.
    """
    limit = checked_limit(limit, _MOST_ENTRIES)
    topological, stream = timeline_place(before)
    _check_room(room_id, using)
    where: dict[str, str | int] = {"room": room_id, "topological": topological, "stream": stream, "limit": limit}
    with connections[using].cursor() as cursor:
        cursor.execute(_TIMELINE, where)
        return [TimelineEntry(*row) for row in cursor]


def topological_walk(room_id: str, after: str | None = None, using: str = "default") -> Iterator[ServedEvent]:
    """Returns an iterator over all events of a room by (topological, stream), oldest first.

    The iteration begins after the event of the token ``after``. Soft-failed events are included, outliers and rejected
    events are not. Only one page of events is in memory. Each page begins where the page before ended, so events that
    arrive meanwhile above that point are included. Senders claim the topological ordering, so an event with a false
    depth may come before its prev events. Raises ``UnknownRoom`` and ``BadToken``.
    """
    place = timeline_place(after) if after is not None else (-1, 0)
    _check_room(room_id, using)
    return _walk(room_id, place, using)


def _walk(room_id: str, place: tuple[int, int], using: str) -> Iterator[ServedEvent]:
    while True:
        where: dict[str, Any] = {"room": room_id, "topological": place[0], "stream": place[1], "limit": _WALKED_AT_ONCE}
        with connections[using].cursor() as cursor:
            cursor.execute(_WALK, where)
            page = [served(row) for row in cursor]
        yield from page
        if len(page) < _WALKED_AT_ONCE:
            return
        place = page[-1].topological_ordering, page[-1].stream_ordering


def _check_room(room_id: str, using: str) -> None:
    if not can_be_stored(room_id) or not Room.objects.using(using).filter(room_id=room_id).exists():
        raise UnknownRoom(f"There is no room {room_id!r:.300}.")


def timeline_place(token: str | None) -> tuple[int, int]:
    """Returns (topological, stream) of a token. For None, returns a place above every event. Raises ``BadToken``."""
    if token is None:
        return 2**63 - 1, 2**63 - 1
    found = _TOKEN.fullmatch(token) if isinstance(token, str) else None
    parts = (int(found[1]), int(found[2])) if found else (2**63, 0)
    if any(abs(part) >= 2**63 for part in parts):
        raise BadToken(f"{token!r:.100} is no timeline token; it looks like t412-90321 (topological, stream).")
    return parts
