"""Whom and what a user meets, at two positions of the stream ``events``: rooms joined, and users that share one of them.

Facts of a room (receipts, typing) are told to who is joined; facts of a user (presence, devices) to who shares a room. When that
changes between two sync answers, what is met anew is told whole, and what is met no more is taken back.
Called with the cursor of one view of the database that was begun after ``now`` was read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from events.notifier.joined_rooms import joined_rooms, joined_rooms_of
from streams.core.tokens import VectorToken

__all__ = ["Circle", "Known", "circle_at", "circle_between", "with_late"]

_AFTER = """
d.type = 'm.room.member' AND d.stream_ordering > %(base)s::bigint
AND d.stream_ordering > coalesce((%(entries)s::jsonb ->> d.instance_name)::bigint, 0)
"""
#: Others whose membership of one of the rooms changed, and all joined to rooms that the user came to or left.
_PERHAPS = f"""
SELECT d.state_key FROM events_currentstatedelta d WHERE d.room_id = ANY(%(rooms)s::text[]) AND {_AFTER}
UNION
SELECT state_key FROM events_currentstate
WHERE room_id = ANY(%(moved)s::text[]) AND type = 'm.room.member' AND membership = 'join'
"""


@dataclass(frozen=True, slots=True)
class Circle:
    """``rooms`` are joined now; of rooms and of users those met anew (``…_come``), and those met no more (``…_gone``).

    The current state may be newer than ``now``: it tells nothing of ``late`` users, of whom ``late_met`` are met.
    """

    rooms: frozenset[str]
    rooms_come: frozenset[str] = frozenset()
    rooms_gone: frozenset[str] = frozenset()
    users_come: frozenset[str] = frozenset()
    users_gone: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    late_met: frozenset[str] = frozenset()

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
    if known is not None:
        rooms = then = known.rooms
        perhaps = set(known.movers) - {user_id}
    else:
        rooms, then = joined_rooms(cursor, user_id, now), joined_rooms(cursor, user_id, since)
        window = {**_window(since), "rooms": list(rooms | then), "moved": list(rooms ^ then)}
        cursor.execute(_PERHAPS, window)
        perhaps = {row[0] for row in cursor.fetchall()} - {user_id}
    met_now = frozenset(joined_rooms_of(cursor, perhaps, now, rooms))
    met_then = frozenset(joined_rooms_of(cursor, perhaps, since, then))
    return Circle(rooms, rooms - then, then - rooms, met_now - met_then, met_then - met_now)


def with_late(cursor: Any, circle: Circle, now: VectorToken) -> Circle:
    """The circle with what the current state does not tell of ``now``."""
    cursor.execute(_PERHAPS, {**_window(now), "rooms": list(circle.rooms), "moved": []})
    late = frozenset(row[0] for row in cursor.fetchall())
    return replace(circle, late=late, late_met=frozenset(joined_rooms_of(cursor, late, now, circle.rooms)))


def _window(after: VectorToken) -> dict[str, Any]:
    return {"base": after.base, "entries": json.dumps(dict(after.entries))}
