"""Whom and what a user meets, at two positions of the stream ``events``: rooms joined, and users that share one of them.

Facts of a room (receipts, typing) are told to who is joined; facts of a user (presence, devices) to who shares a room. When that
changes between two sync answers, what is met anew is told whole, and what is met no more is taken back.
Called with the cursor of one view of the database that was begun after ``now`` was read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from events.joined_rooms import joined_rooms
from streams.tokens import VectorToken

__all__ = ["Circle", "Known", "circle_at", "circle_between"]

_IN_WINDOW = """
d.stream_ordering > %(base)s::bigint AND d.stream_ordering > coalesce((%(entries)s::jsonb ->> d.instance_name)::bigint, 0)
"""
#: Others whose membership of one of the rooms changed, and all joined to rooms that the user came to or left.
_PERHAPS = f"""
SELECT d.state_key FROM events_currentstatedelta d
WHERE d.room_id = ANY(%(rooms)s::text[]) AND d.type = 'm.room.member' AND {_IN_WINDOW}
UNION
SELECT state_key FROM events_currentstate
WHERE room_id = ANY(%(moved)s::text[]) AND type = 'm.room.member' AND membership = 'join'
"""
#: Of these users: who shares a room now, and who shared one then.
_SHARED = f"""
WITH who AS (SELECT unnest(%(users)s::text[]) AS user_id),
was AS (
  SELECT d.room_id, d.state_key,
         (array_agg((SELECT membership FROM events_event e WHERE e.event_id = d.prev_event_id)
                    ORDER BY d.stream_ordering))[1] AS membership
  FROM events_currentstatedelta d
  WHERE d.state_key = ANY(%(users)s::text[]) AND d.type = 'm.room.member' AND {_IN_WINDOW}
    AND d.room_id = ANY(%(rooms_then)s::text[])
  GROUP BY d.room_id, d.state_key
)
SELECT who.user_id,
  EXISTS (SELECT FROM events_currentstate c WHERE c.type = 'm.room.member' AND c.state_key = who.user_id
          AND c.membership = 'join' AND c.room_id = ANY(%(rooms_now)s::text[])),
  EXISTS (SELECT FROM events_currentstate c WHERE c.type = 'm.room.member' AND c.state_key = who.user_id
          AND c.membership = 'join' AND c.room_id = ANY(%(rooms_then)s::text[])
          AND NOT EXISTS (SELECT FROM was WHERE was.room_id = c.room_id AND was.state_key = c.state_key))
  OR EXISTS (SELECT FROM was WHERE was.state_key = who.user_id AND was.membership = 'join')
FROM who
"""


@dataclass(frozen=True, slots=True)
class Circle:
    """``rooms`` are joined now; of rooms and of users those met anew (``…_come``), and those met no more (``…_gone``)."""

    rooms: frozenset[str]
    rooms_come: frozenset[str] = frozenset()
    rooms_gone: frozenset[str] = frozenset()
    users_come: frozenset[str] = frozenset()
    users_gone: frozenset[str] = frozenset()

    @property
    def changed(self) -> bool:
        """Whether anything is met anew, or no more."""
        return bool(self.rooms_come or self.rooms_gone or self.users_come or self.users_gone)


@dataclass(frozen=True, slots=True)
class Known:
    """The user's rooms, the same at both positions, and the users whose membership of any room may have changed in between."""

    rooms: frozenset[str]
    movers: frozenset[str]


def circle_at(cursor: Any, user_id: str, now: VectorToken) -> Circle:
    """As of one position."""
    return Circle(joined_rooms(cursor, user_id, now))


def circle_between(
    cursor: Any, user_id: str, since: VectorToken, now: VectorToken, known: Known | None = None
) -> Circle:
    """As of ``now``, with what changed since; ``known`` is what memory says, where it can."""
    window = {"base": since.base, "entries": json.dumps(dict(since.entries))}
    if known is not None:
        rooms = then = known.rooms
        perhaps = sorted(known.movers - {user_id})
    else:
        rooms, then = joined_rooms(cursor, user_id, now), joined_rooms(cursor, user_id, since)
        cursor.execute(_PERHAPS, {**window, "rooms": sorted(rooms | then), "moved": sorted(rooms ^ then)})
        perhaps = sorted({row[0] for row in cursor.fetchall()} - {user_id})
    if not perhaps:
        return Circle(rooms, rooms - then, then - rooms)
    cursor.execute(_SHARED, {**window, "users": perhaps, "rooms_now": sorted(rooms), "rooms_then": sorted(then)})
    shared = cursor.fetchall()
    users_come = frozenset(user for user, now_shared, then_shared in shared if now_shared and not then_shared)
    users_gone = frozenset(user for user, now_shared, then_shared in shared if then_shared and not now_shared)
    return Circle(rooms, rooms - then, then - rooms, users_come, users_gone)
