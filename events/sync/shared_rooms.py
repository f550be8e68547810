"""Computes a user's joined rooms and *contacts*, and how both changed between two positions of the stream ``events``.

A contact is another user who shares a joined room. Facts of a room (receipts, typing) go to users who are joined. Facts
of a user (presence, devices) go to contacts. If a room or contact is gained between two sync answers, all its facts are
sent. If a room or contact is lost, its facts are removed. Assumes the cursor of a snapshot that was opened after
``now`` was read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from events.notifier.joined_rooms import contacts_changed_between, joined_rooms, joined_rooms_between, joined_rooms_of
from streams.core.tokens import VectorToken

_AFTER = """
d.type = 'm.room.member' AND d.stream_ordering > %(base)s::bigint
AND d.stream_ordering > coalesce((%(entries)s::jsonb ->> d.instance_name)::bigint, 0)
"""
#: Candidates for gained and lost contacts: users whose membership in one of the rooms changed, and all who are joined to the
#: rooms that the user joined or left.
_MAY_HAVE_MOVED = f"""
SELECT d.state_key FROM events_currentstatedelta d WHERE d.room_id = ANY(%(rooms)s::text[]) AND {_AFTER}
UNION
SELECT state_key FROM events_currentstate
WHERE room_id = ANY(%(moved)s::text[]) AND type = 'm.room.member' AND membership = 'join'
"""


@dataclass(frozen=True, slots=True)
class SharedRooms:
    """A user's joined rooms at ``now``, with rooms and contacts gained (``…_come``) and lost (``…_gone``) since.

    ``late`` are users whose memberships in the table of current state may be newer than ``now``, so the table is not
    used for them. ``late_contacts`` are those of them who are contacts at ``now``. Only ``with_late_members`` fills both.
    """

    rooms: frozenset[str]
    rooms_gained: frozenset[str] = frozenset()
    rooms_lost: frozenset[str] = frozenset()
    users_gained: frozenset[str] = frozenset()
    users_lost: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    late_contacts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Known:
    """The notifier's answer for a user.

    ``rooms`` are the rooms that the user is joined to at a position that is not below ``now``. ``changed`` are those of
    them in which anything may have changed.
    """

    rooms: frozenset[str]
    changed: frozenset[str]


def shared_rooms_at(cursor: Any, user_id: str, now: VectorToken) -> SharedRooms:
    """Returns the joined rooms as of one position. Nothing counts as gained or lost."""
    return SharedRooms(joined_rooms(cursor, user_id, now))


def shared_rooms_between(
    cursor: Any, user_id: str, since: VectorToken, now: VectorToken, known: Known | None = None
) -> SharedRooms:
    """Returns the joined rooms as of ``now``, and the rooms and contacts gained and lost since ``since``.

    ``known`` is the answer of the notifier, or None. With it, the rooms without a change are not read.
    """
    if known is not None:
        then, rooms = joined_rooms_between(cursor, user_id, since, now, known.rooms)
        rooms_to_read = known.changed | (
            (rooms | then) - known.rooms
        )  # a room that the user left later is not among them
    else:
        then, rooms = joined_rooms(cursor, user_id, since), joined_rooms(cursor, user_id, now)
        rooms_to_read = rooms | then
    cursor.execute(_MAY_HAVE_MOVED, {**_window(since), "rooms": list(rooms_to_read), "moved": list(rooms ^ then)})
    candidates = {row[0] for row in cursor.fetchall()} - {user_id}
    lost, gained = frozenset[str](), frozenset[str]()
    if candidates:
        # After a change of membership the two users may still share another room.
        lost, gained = contacts_changed_between(cursor, user_id, candidates, (since, then), (now, rooms))
    return SharedRooms(rooms, rooms - then, then - rooms, gained, lost)


def with_late_members(cursor: Any, shared: SharedRooms, now: VectorToken) -> SharedRooms:
    cursor.execute(_MAY_HAVE_MOVED, {**_window(now), "rooms": list(shared.rooms), "moved": []})
    late = frozenset(row[0] for row in cursor.fetchall())
    return replace(shared, late=late, late_contacts=frozenset(joined_rooms_of(cursor, late, now, shared.rooms)))


def _window(after: VectorToken) -> dict[str, Any]:
    return {"base": after.base, "entries": json.dumps(dict(after.entries))}
