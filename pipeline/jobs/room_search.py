"""Finds rooms for the forms of jobs, with the search that the site's list of rooms has."""

from __future__ import annotations

from events.admin.room_list import found_rooms
from events.models import RoomSummary
from streams.conf import stream_settings
from streams.runtime.text import safe_text

__all__ = ["ROOMS_FOUND", "find_rooms"]

ROOMS_FOUND = 20


def find_rooms(text: str) -> list[dict[str, str]]:
    """Returns the ID and name of each room that matches ``text``, the most recently active rooms first.

    Returns no rooms if ``text`` is empty.
    """
    if not text.strip() or "\x00" in text:
        return []
    found = found_rooms(RoomSummary.objects.using(stream_settings().database), text)
    return [
        {"id": room.room_id, "text": safe_text(str(room))}
        for room in found.order_by("-active_on", "-active_at")[:ROOMS_FOUND]
    ]
