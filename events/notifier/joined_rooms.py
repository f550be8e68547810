"""Which rooms users are joined to, as of a position of the stream ``events``: the current state, and what came later taken back.

The current state changes with a commit, and positions show it a moment afterwards. So what a position covers and what the
table says differ by the changes in between; both are read in one statement, and the later changes undone. A change that the
position covers wins over an older one that it does not: two writers' positions move apart.
Called with a cursor of any connection.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import Any

from streams.core.tokens import VectorToken

__all__ = ["joined_rooms", "joined_rooms_of", "rooms_of_users"]

#: Joined rooms (no position), and later changes of membership: user, room, position, writer, membership after and before.
_JOINED = """
SELECT state_key, room_id, NULL::bigint, NULL, NULL, NULL FROM events_currentstate
WHERE type = 'm.room.member' AND state_key = ANY(%(users)s::text[]) AND membership = 'join' {among}
UNION ALL
SELECT d.state_key, d.room_id, d.stream_ordering, d.instance_name,
       (SELECT membership FROM events_event e WHERE e.event_id = d.event_id),
       (SELECT membership FROM events_event e WHERE e.event_id = d.prev_event_id)
FROM events_currentstatedelta d
WHERE d.stream_ordering > %(base)s::bigint AND d.type = 'm.room.member' AND d.state_key = ANY(%(users)s::text[]) {among}
"""
_ALL = _JOINED.format(among="")
_AMONG = _JOINED.format(among="AND room_id = ANY(%(rooms)s::text[])")
#: Users with the rooms that they are joined to, as the table says.
_OF_USERS = """
SELECT state_key, array_agg(room_id) FROM events_currentstate
WHERE type = 'm.room.member' AND state_key = ANY(%(users)s::text[]) AND membership = 'join' GROUP BY state_key
"""


def joined_rooms(cursor: Any, user_id: str, at: VectorToken) -> frozenset[str]:
    """The rooms that the user was joined to when exactly what the token covers had happened."""
    cursor.execute(_ALL, {"users": [user_id], "base": at.base})
    return frozenset(room_id for _, room_id in _joined(cursor.fetchall(), at))


def joined_rooms_of(
    cursor: Any, user_ids: Collection[str], at: VectorToken, among: Collection[str]
) -> dict[str, set[str]]:
    """The same for several users and these rooms; only users who were joined to any of them."""
    found: dict[str, set[str]] = {}
    if user_ids and among:
        cursor.execute(_AMONG, {"users": list(user_ids), "base": at.base, "rooms": list(among)})
        for user_id, room_id in _joined(cursor.fetchall(), at):
            found.setdefault(user_id, set()).add(room_id)
    return found


def _joined(rows: Iterable[tuple[Any, ...]], at: VectorToken) -> set[tuple[str, str]]:
    """(user, room) where the user was joined."""
    joined: set[tuple[str, str]] = set()
    before: dict[tuple[str, str], bool] = {}
    covered: dict[tuple[str, str], bool] = {}
    for user_id, room_id, position, writer, after, earlier in sorted(rows, key=lambda row: row[2] or 0):
        key = user_id, sys.intern(room_id)
        if position is None:
            joined.add(key)
        elif at.covers(writer, position):
            covered[key] = after == "join"
        else:
            before.setdefault(key, earlier == "join")
    for key, was_joined in before.items():
        if covered.get(key, was_joined):
            joined.add(key)
        else:
            joined.discard(key)
    return joined


def rooms_of_users(cursor: Any, user_ids: Iterable[str]) -> dict[str, frozenset[str]]:
    """The rooms of several users as the table says, for those who are joined to any."""
    cursor.execute(_OF_USERS, {"users": list(user_ids)})
    return {user_id: frozenset(room_ids) for user_id, room_ids in cursor.fetchall()}
