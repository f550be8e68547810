"""Which rooms a user is joined to, as of a position of the stream ``events``: the current state, and what came later taken back.

The current state changes with a commit, and positions show it a moment afterwards. So what a position covers and what the
table says differ by the changes in between; both are read in one statement, and the later changes undone.
Called with a cursor of any connection.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from streams.tokens import VectorToken

__all__ = ["joined_rooms", "rooms_of_users"]

#: Joined rooms (no position), and later changes of membership: room, position, writer, membership after and before.
_JOINED = """
SELECT room_id, NULL::bigint, NULL, NULL, NULL FROM events_currentstate
WHERE type = 'm.room.member' AND state_key = %(user)s AND membership = 'join'
UNION ALL
(SELECT d.room_id, d.stream_ordering, d.instance_name,
        (SELECT membership FROM events_event e WHERE e.event_id = d.event_id),
        (SELECT membership FROM events_event e WHERE e.event_id = d.prev_event_id)
 FROM events_currentstatedelta d
 WHERE d.stream_ordering > %(base)s::bigint AND d.type = 'm.room.member' AND d.state_key = %(user)s
 ORDER BY d.stream_ordering)
"""
#: Users with the rooms that they are joined to, as the table says.
_OF_USERS = """
SELECT state_key, array_agg(room_id) FROM events_currentstate
WHERE type = 'm.room.member' AND state_key = ANY(%(users)s::text[]) AND membership = 'join' GROUP BY state_key
"""


def joined_rooms(cursor: Any, user_id: str, at: VectorToken) -> frozenset[str]:
    """The rooms that the user was joined to when exactly what the token covers had happened."""
    cursor.execute(_JOINED, {"user": user_id, "base": at.base})
    rooms: set[str] = set()
    before: dict[str, bool] = {}
    covered: dict[str, bool] = {}
    later: set[str] = set()
    for room_id, position, writer, after, earlier in cursor.fetchall():
        if position is None:
            rooms.add(sys.intern(room_id))
        elif at.covers(writer, position):
            covered[room_id] = after == "join"
        else:
            later.add(room_id)
            before.setdefault(room_id, earlier == "join")
    for room_id in later:
        if covered.get(room_id, before[room_id]):
            rooms.add(room_id)
        else:
            rooms.discard(room_id)
    return frozenset(rooms)


def rooms_of_users(cursor: Any, user_ids: Iterable[str]) -> dict[str, frozenset[str]]:
    """The rooms of several users as the table says, for those who are joined to any."""
    cursor.execute(_OF_USERS, {"users": list(user_ids)})
    return {user_id: frozenset(room_ids) for user_id, room_ids in cursor.fetchall()}
