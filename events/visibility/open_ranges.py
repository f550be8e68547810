"""Compares rebuilt ranges with the room's current state. Needs no Django.

The open ranges of users show who is in the room now. The stored current state, which other code writes, shows this,
too. Both follow from the same forward extremities. If the open ranges and the current state differ, one of the two is
wrong. Then nothing is written, and an error is raised. Assumes the caller's transaction with the room's row locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from events.errors import RangesDisagree
from events.visibility.ranges import VisibilityRow

_MOST_NAMED = 5
_KINDS = {"join": "joined", "leave": "cut"}
#: Selects the memberships in the current state. There are none if this state is unknown, or if no live event was accepted.
_CURRENT = """
SELECT c.state_key, c.membership FROM events_currentstate c
WHERE c.room_id = %(room)s AND c.type = 'm.room.member' AND EXISTS (
    SELECT FROM events_room r WHERE r.room_id = %(room)s AND NOT r.current_state_unresolved
) AND EXISTS (
    SELECT FROM events_event e WHERE e.room_id = %(room)s AND e.stream_ordering > 0
      AND NOT e.outlier AND NOT e.soft_failed AND e.rejected_reason IS NULL
)
"""


def check_open_ranges(cursor: Any, room_id: str, rows: Iterable[VisibilityRow]) -> None:
    """Raises ``RangesDisagree`` if open ranges and the stored current state disagree about the members."""
    cursor.execute(_CURRENT, {"room": room_id})
    members = {user_id: membership or "leave" for user_id, membership in cursor.fetchall()}
    if not members:
        return
    wrong = _differing(members, rows)
    if wrong:
        shown = "; ".join(wrong[:_MOST_NAMED]) + (
            f"; and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        )
        raise RangesDisagree(
            f"{room_id}: who sees what would not fit the current state ({shown}), so nothing was written. "
            f"See manage.py room check '{room_id}'; manage.py resync rooms '{room_id}' mends both together."
        )


def _differing(members: Mapping[str, str], rows: Iterable[VisibilityRow]) -> list[str]:
    open_kinds: dict[str, set[str]] = {}
    for row in rows:
        if row.user_id is not None and row.last is None:
            open_kinds.setdefault(row.user_id, set()).add(row.kind)
    found = []
    for user_id in sorted(members.keys() | open_kinds.keys()):
        membership, kinds = members.get(user_id), open_kinds.get(user_id, set())
        wanted = _KINDS.get(membership or "")
        right = kinds <= {"invited"} if membership == "invite" else kinds == ({wanted} if wanted is not None else set())
        if not right:
            found.append(f"{user_id} is at {membership!r} there, and {', '.join(sorted(kinds)) or 'nothing'} is open")
    return found
