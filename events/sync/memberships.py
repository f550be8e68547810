"""Computes a user's memberships as of a token, and how they changed since an earlier token.

The stored current state may be ahead of the token, so later changes are undone. Example: Bob joins at 5 and leaves at
9, and the token is at 7. The table says ``leave``; the change at 9 says that it was ``join`` before. If a room has no
local members, this server knows an invite or a knock only by the membership event, which is an outlier. This event
gives the membership as long as the room has no current state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from events.sync.sql import MEMBERSHIP_CHANGES, MEMBERSHIPS, MEMBERSHIPS_AMONG, OUT_OF_BAND, rows, with_tokens
from streams.core.tokens import VectorToken


@dataclass(slots=True)
class RoomMembership:
    """A user's membership in one room.

    ``before`` is the membership at ``since``, and ``event_before`` the ID of its event. ``changed_at`` is the position
    of the last change after ``since``, or None. ``out_at`` is the position of the last change from ``join`` to
    something else. ``joined_since``: the user joined after ``since``, perhaps after having left. ``out_of_band``: the
    room is known only by the membership event.
    """

    room_id: str
    membership: str | None = None
    event_id: str | None = None
    before: str | None = None
    changed_at: int | None = None
    out_at: int | None = None
    joined_since: bool = False
    out_of_band: bool = False
    event_before: str | None = None

    @property
    def was_joined(self) -> bool:
        """True if the user was joined at some time after ``since``."""
        return self.before == "join" or self.joined_since


@dataclass(slots=True)
class Memberships:
    rooms: dict[str, RoomMembership] = field(default_factory=dict)

    def of(self, *memberships: str) -> list[RoomMembership]:
        return sorted((r for r in self.rooms.values() if r.membership in memberships), key=lambda r: r.room_id)

    def changed(self) -> list[RoomMembership]:
        return sorted((r for r in self.rooms.values() if r.changed_at is not None), key=lambda r: r.room_id)


def read_memberships(
    user_id: str, now: VectorToken, since: VectorToken | None, using: str, among: Collection[str] | None = None
) -> Memberships:
    """Returns the user's memberships at ``now``.

    Without ``since`` no membership counts as changed.

    With ``among`` the result has only these rooms, and those in which the user's membership changed.
    """
    found = Memberships()
    text, values = with_tokens(MEMBERSHIP_CHANGES, now, since or now)
    changes = rows(text, {**values, "user_id": user_id}, using)
    values = {"user_id": user_id}
    if among is None:
        stored = rows(MEMBERSHIPS, values, using)
    else:
        stored = rows(MEMBERSHIPS_AMONG, {**values, "rooms": [*{*among, *(row[0] for row in changes)}]}, using)
    for room_id, membership, event_id in stored:
        found.rooms[room_id] = RoomMembership(room_id, membership, event_id, before=membership, event_before=event_id)
    _apply_changes(found, changes)
    out_of_band, values = with_tokens(OUT_OF_BAND, now, since or now)
    for room_id, event_id, membership, position, old in rows(out_of_band, {**values, "user_id": user_id}, using):
        known = found.rooms.setdefault(room_id, RoomMembership(room_id))
        # A membership in the room's state, or a change of it, wins over the event alone.
        if known.membership is None and known.changed_at is None:
            changed_at = None if old else position
            found.rooms[room_id] = RoomMembership(
                room_id, membership, event_id, membership if old else None, changed_at, out_of_band=True
            )
    return found


def _apply_changes(found: Memberships, changes: Iterable[tuple[Any, ...]]) -> None:
    # The newest change (ascending) that a token covers gives the membership at that token, or else the one before the
    # first change. Writers may be at different positions. For example, A commits 6, B commits 7, and the token covers
    # only 7. Then 7 is used, because the membership that 6 replaced is older than 7.
    latest: dict[str, int] = {}
    for room_id, position, covered, known, prev_event_id, prev_membership, event_id, membership in changes:
        room = found.rooms.setdefault(room_id, RoomMembership(room_id))
        if room_id not in latest:
            latest[room_id] = 0
            room.before, room.event_before = prev_membership, prev_event_id
            room.membership, room.event_id = prev_membership, prev_event_id
        if known:
            room.before, room.event_before = membership, event_id
        if covered:
            latest[room_id] = position
            room.membership, room.event_id = membership, event_id
            if prev_membership == "join" != membership:
                room.out_at = position
        if covered and not known:
            room.changed_at = position
            room.joined_since |= membership == "join" and prev_membership != "join"
    for room_id, position in latest.items():
        room = found.rooms[room_id]
        room.joined_since |= room.before != "join" == room.membership
        if (
            room.changed_at is not None
        ):  # an older change came late: the later one, which ``since`` covers, stays the last
            room.changed_at = position
