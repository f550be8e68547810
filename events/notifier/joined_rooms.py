"""Reads which rooms users were joined to at a position of the stream ``events``.

The table of current state changes with a commit, and positions cover the commit a moment later. So the table may be
ahead of a position. One statement reads the table, and the changes after the position. Then these changes are undone.

The functions accept a cursor of any connection.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import Any

from streams.core.tokens import VectorToken

__all__ = ["joined_rooms", "joined_rooms_of", "rooms_of_users"]

#: Rooms that the users are joined to now (without position), and changes of membership above the token's base: user,
#: room, position, writer, membership after, membership before.
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
#: Users with the rooms that they are joined to, by the current state.
_OF_USERS = """
SELECT state_key, array_agg(room_id) FROM events_currentstate
WHERE type = 'm.room.member' AND state_key = ANY(%(users)s::text[]) AND membership = 'join' GROUP BY state_key
"""


def joined_rooms(cursor: Any, user_id: str, at: VectorToken) -> frozenset[str]:
    """Returns the rooms that the user is joined to according to exactly the facts that the token covers."""
    cursor.execute(_ALL, {"users": [user_id], "base": at.base})
    return frozenset(room_id for _, room_id in _joined(cursor.fetchall(), at))


def joined_rooms_of(
    cursor: Any, user_ids: Collection[str], at: VectorToken, among: Collection[str]
) -> dict[str, set[str]]:
    """Returns, for several users, which of the rooms ``among`` they are joined to at the token.

    Users who are joined to none of these rooms are left out.
    """
    found: dict[str, set[str]] = {}
    if user_ids and among:
        cursor.execute(_AMONG, {"users": list(user_ids), "base": at.base, "rooms": list(among)})
        for user_id, room_id in _joined(cursor.fetchall(), at):
            found.setdefault(user_id, set()).add(room_id)
    return found


def _joined(rows: Iterable[tuple[Any, ...]], at: VectorToken) -> set[tuple[str, str]]:
    """Returns the pairs (user, room) where the user is joined at the token, from the rows of ``_JOINED``."""
    joined: set[tuple[str, str]] = set()
    before: dict[tuple[str, str], bool] = {}
    covered: dict[tuple[str, str], bool] = {}
    for user_id, room_id, position, writer, after, earlier in sorted(rows, key=lambda row: row[2] or 0):
        key = user_id, sys.intern(room_id)
        if position is None:
            joined.add(key)
        elif at.covers(writer, position):  # the last covered change counts
            covered[key] = after == "join"
        else:  # to be undone: the membership before the first such change counts
            before.setdefault(key, earlier == "join")
    # Positions of writers move apart: A's change at 9 may be covered, and B's at 5 not. What B's change replaced is
    # older than A's change, so a covered change wins.
    for key, was_joined in before.items():
        if covered.get(key, was_joined):
            joined.add(key)
        else:
            joined.discard(key)
    return joined


def rooms_of_users(cursor: Any, user_ids: Iterable[str]) -> dict[str, frozenset[str]]:
    """Returns the rooms of several users by the current state. Users who are joined to none are left out."""
    cursor.execute(_OF_USERS, {"users": list(user_ids)})
    return {user_id: frozenset(room_ids) for user_id, room_ids in cursor.fetchall()}
