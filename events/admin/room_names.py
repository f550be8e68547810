"""Names of rooms for people, and their health in one word, for any number of rooms with a fixed number of queries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django.db import connections

from events.models import BackwardExtremity, Room, RoomSummary
from streams.runtime.text import safe_text

HEALTH = {
    "healthy": "All states are known, and no event is missing.",
    "gaps": "Some events refer to events that are not here. Usual if the server joined late: backfill brings them.",
    "unknown": "The current state, or who may see the events, is not known: events below others are missing.",
}
"""Word of a room's health -> what it means."""
_LONGEST_NAME = 120
_MEMBERS_NAMED = 3
#: The first members of each room by user ID. Few rows are read of a room, even if most of its users have left.
_MEMBERS = """
SELECT room.room_id, member.state_key FROM unnest(%s::text[]) AS room (room_id)
CROSS JOIN LATERAL (
    SELECT state_key FROM (
        SELECT state_key, membership FROM events_currentstate
        WHERE room_id = room.room_id AND type = 'm.room.member' ORDER BY state_key LIMIT 50
    ) AS first WHERE membership IN ('join', 'invite') ORDER BY state_key LIMIT %s
) AS member
"""


@dataclass(frozen=True, slots=True)
class RoomName:
    """The name to show for a room.

    ``text`` is the room's name, else its alias, else its members, else the room ID.

    ``alias`` is empty if ``text`` is the alias already, or if the room has no alias.
    """

    text: str
    alias: str


def room_names(room_ids: Collection[str], using: str) -> dict[str, RoomName]:
    wanted = ["".join(room_id) for room_id in room_ids]  # the characters themselves, also of text that escapes some
    summaries = {row.room_id: row for row in RoomSummary.objects.using(using).filter(room_id__in=wanted)}
    nameless = [room_id for room_id in wanted if (row := summaries.get(room_id)) is None or not (row.name or row.alias)]
    members: dict[str, list[str]] = {}
    if nameless:
        with connections[using].cursor() as cursor:
            cursor.execute(_MEMBERS, [nameless, _MEMBERS_NAMED])
            for room_id, user in cursor.fetchall():
                members.setdefault(room_id, []).append(user)
    return {room_id: _name(room_id, summaries.get(room_id), members.get(room_id, ())) for room_id in wanted}


def _name(room_id: str, row: RoomSummary | None, members: Sequence[str]) -> RoomName:
    name, alias = (safe_text(text, _LONGEST_NAME) for text in ((row.name, row.alias) if row is not None else ("", "")))
    if name or alias:
        return RoomName(name or alias, alias if name else "")
    if not members:
        return RoomName(safe_text(room_id, 260), "")
    more = (row.joined + row.invited if row is not None else 0) - len(members)
    return RoomName(", ".join(safe_text(user, 60) for user in members) + (f" and {more} more" if more > 0 else ""), "")


def health_words(rooms: Sequence[Room], using: str) -> dict[str, str]:
    wanted = ["".join(room.room_id) for room in rooms]
    gaps = set(
        BackwardExtremity.objects.using(using).filter(room_id__in=wanted).values_list("room_id", flat=True).distinct()
    )
    return {
        room_id: "unknown"
        if room.current_state_unresolved or room.visibility_unresolved
        else "gaps"
        if room_id in gaps
        else "healthy"
        for room_id, room in zip(wanted, rooms, strict=True)
    }
