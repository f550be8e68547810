"""Reads which rooms users were joined to at a position of the stream ``events``.

A commit changes the table of the current state at once, but positions cover the commit a moment later. So the table may
be ahead of a position. One SQL statement reads the table and the changes after the position. Python code then undoes
these changes.

For example, this process is at position 5, and change 6, by which Ada left a room, is committed. The table has the room
no more. Change 6 says that she was joined before it, so at position 5 she is.

The functions accept a cursor of any connection.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import Any

from streams.core.tokens import VectorToken

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
#: The same, only in rooms where the membership of one of the users, or of the user ``me``, changed above the base.
_MOVED = _JOINED.format(
    among="""AND room_id IN (
    SELECT m.room_id FROM events_currentstatedelta m
    WHERE m.type = 'm.room.member' AND m.state_key = ANY(%(users)s::text[] || %(me)s::text)
    AND m.stream_ordering > %(base)s::bigint)"""
)
#: Those of the users who share no room with the user ``me`` in which both have been joined since the base. ``OFFSET 0``
#: makes the plan walk through the rooms of the other user, up to the first shared one, and not through those of ``me``.
_APART = """
SELECT given.user_id FROM unnest(%(users)s::text[]) AS given (user_id) WHERE NOT EXISTS (
  SELECT FROM events_currentstate theirs
  WHERE theirs.type = 'm.room.member' AND theirs.state_key = given.user_id AND theirs.membership = 'join'
  AND EXISTS (
    SELECT FROM events_currentstate mine WHERE mine.room_id = theirs.room_id
    AND mine.type = 'm.room.member' AND mine.state_key = %(me)s AND mine.membership = 'join' OFFSET 0)
  AND NOT EXISTS (
    SELECT FROM events_currentstatedelta d
    WHERE d.type = 'm.room.member' AND d.state_key IN (given.user_id, %(me)s)
    AND d.stream_ordering > %(base)s::bigint AND d.room_id = theirs.room_id OFFSET 0)
  OFFSET 0)
"""
#: Users with the rooms that they are joined to, by the current state.
_OF_USERS = """
SELECT state_key, array_agg(room_id) FROM events_currentstate
WHERE type = 'm.room.member' AND state_key = ANY(%(users)s::text[]) AND membership = 'join' GROUP BY state_key
"""


def joined_rooms(cursor: Any, user_id: str, at: VectorToken) -> frozenset[str]:
    """Returns the rooms to which the user is joined at the token. Only facts that the token covers count."""
    cursor.execute(_ALL, {"users": [user_id], "base": at.base})
    return frozenset(room_id for _, room_id in _joined(cursor.fetchall(), at))


def joined_rooms_of(
    cursor: Any, user_ids: Collection[str], at: VectorToken, among: Collection[str]
) -> dict[str, set[str]]:
    """Returns, for several users, which of the rooms ``among`` they are joined to at the token."""
    found: dict[str, set[str]] = {}
    if user_ids and among:
        cursor.execute(_AMONG, {"users": list(user_ids), "base": at.base, "rooms": list(among)})
        for user_id, room_id in _joined(cursor.fetchall(), at):
            found.setdefault(user_id, set()).add(room_id)
    return found


def joined_rooms_between(
    cursor: Any, user_id: str, since: VectorToken, now: VectorToken, later: frozenset[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Returns (rooms that the user was joined to at ``since``, rooms that the user was joined to at ``now``).

    ``later`` are the rooms that the user is joined to at some position that is not below ``now``. In rooms where the
    user's membership did not change after ``since``, ``later`` gives the answer. Only the other rooms are read.
    """
    cursor.execute(_MOVED, {"users": [user_id], "me": user_id, "base": since.base})
    found = cursor.fetchall()
    if not found:
        return later, later
    unmoved = later.difference(room_id for _, room_id, *_ in found)
    then, at_now = (unmoved.union(room_id for _, room_id in _joined(found, at)) for at in (since, now))
    return then, at_now


def contacts_changed_between(
    cursor: Any,
    user_id: str,
    others: Collection[str],
    then: tuple[VectorToken, Collection[str]],
    now: tuple[VectorToken, Collection[str]],
) -> tuple[frozenset[str], frozenset[str]]:
    """Returns two sets: users who shared a room with the user at the first position only, and at the second only.

    ``then`` and ``now`` are pairs (position, rooms that the user was joined to at this position). Most users of
    ``others`` share a room with the user in which neither membership changed, and need no further query.
    """
    base = then[0].base
    cursor.execute(_APART, {"users": list(others), "me": user_id, "base": base})
    apart = [other for (other,) in cursor.fetchall()]
    if not apart:
        return frozenset(), frozenset()
    cursor.execute(_MOVED, {"users": apart, "me": user_id, "base": base})
    found = cursor.fetchall()
    shared_then, shared_now = (
        frozenset(other for other, room_id in _joined(found, at) if room_id in rooms) for at, rooms in (then, now)
    )
    return shared_then - shared_now, shared_now - shared_then


def _joined(rows: Iterable[tuple[Any, ...]], at: VectorToken) -> set[tuple[str, str]]:
    current: list[tuple[str, str]] = []
    changes: list[tuple[Any, ...]] = []
    for row in rows:
        if row[2] is None:
            current.append((row[0], sys.intern(row[1])))
        else:
            changes.append(row)
    joined = set(current)
    before: dict[tuple[str, str], bool] = {}
    covered: dict[tuple[str, str], bool] = {}
    for user_id, room_id, position, writer, after, earlier in sorted(changes, key=lambda row: row[2]):
        key = user_id, sys.intern(room_id)
        if at.covers(writer, position):  # the last covered change counts
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
    """Returns the joined rooms of several users by the current state. Users without joined rooms are left out."""
    cursor.execute(_OF_USERS, {"users": list(user_ids)})
    return {user_id: frozenset(room_ids) for user_id, room_ids in cursor.fetchall()}
