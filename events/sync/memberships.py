"""A user's memberships as they were at a token, and how they changed on the way there.

What is stored is the current state, which may be ahead of the token: changes beyond it are taken back. An invite or a knock on a
room that nobody here is in is known by its event alone (an outlier); it counts while the room has no current state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from events.sync.prepared import rows
from events.sync.sql import MEMBERSHIP_CHANGES, MEMBERSHIPS, OUT_OF_BAND, with_tokens
from streams.core.tokens import VectorToken

__all__ = ["Memberships", "Standing", "read_memberships"]


@dataclass(slots=True)
class Standing:
    """How a user stands to a room.

    ``changed_at``: position of the last change after ``since``; null: it did not change. ``before`` is the membership at
    ``since``. ``out_at``: position of the last change from being joined to something else. ``joined_anew``: the user came in
    after ``since``, perhaps after having left. ``out_of_band``: the room is known by the membership event alone.
    """

    room_id: str
    membership: str | None = None
    event_id: str | None = None
    before: str | None = None
    changed_at: int | None = None
    out_at: int | None = None
    joined_anew: bool = False
    out_of_band: bool = False

    @property
    def was_in(self) -> bool:
        """Whether the user was in the room at some time after ``since``."""
        return self.before == "join" or self.joined_anew


@dataclass(slots=True)
class Memberships:
    """The user's rooms by ID."""

    rooms: dict[str, Standing] = field(default_factory=dict)

    def of(self, *memberships: str) -> list[Standing]:
        """Rooms where the user's membership is one of these, sorted by ID."""
        return sorted((r for r in self.rooms.values() if r.membership in memberships), key=lambda r: r.room_id)

    def changed(self) -> list[Standing]:
        """Rooms where it changed."""
        return sorted((r for r in self.rooms.values() if r.changed_at is not None), key=lambda r: r.room_id)


def read_memberships(user_id: str, now: VectorToken, since: VectorToken | None, using: str) -> Memberships:
    """The user's memberships at ``now``; without ``since`` nothing of them counts as changed."""
    found = Memberships()
    for room_id, membership, event_id in rows(MEMBERSHIPS, {"user_id": user_id}, using):
        found.rooms[room_id] = Standing(room_id, membership, event_id, before=membership)
    changes, values = with_tokens(MEMBERSHIP_CHANGES, now, since or now)
    _take_in(found, rows(changes, {**values, "user_id": user_id}, using))
    out_of_band, values = with_tokens(OUT_OF_BAND, now, since or now)
    for room_id, event_id, membership, position, old in rows(out_of_band, {**values, "user_id": user_id}, using):
        known = found.rooms.setdefault(room_id, Standing(room_id))
        if known.membership is None and known.changed_at is None:
            changed_at = None if old else position
            found.rooms[room_id] = Standing(
                room_id, membership, event_id, membership if old else None, changed_at, out_of_band=True
            )
    return found


def _take_in(found: Memberships, changes: Iterable[tuple[Any, ...]]) -> None:
    """Changes oldest first: those that ``now`` covers tell what happened, the first one beyond it what to take back."""
    seen: set[str] = set()
    beyond: set[str] = set()
    for room_id, position, covered, prev_event_id, prev_membership, event_id, membership in changes:
        room = found.rooms.setdefault(room_id, Standing(room_id))
        if room_id not in seen:
            seen.add(room_id)
            room.before = prev_membership
        if room_id in beyond:
            continue
        if covered:
            room.changed_at = position
            room.membership, room.event_id = membership, event_id
            if prev_membership == "join" != membership:
                room.out_at = position
            room.joined_anew |= membership == "join" and prev_membership != "join"
        else:
            beyond.add(room_id)
            room.membership, room.event_id = prev_membership, prev_event_id
