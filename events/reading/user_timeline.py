"""Reads a room as one user sees it, as a single list: the pages of ``events.reading.pages``, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from events.reading.event_json import ServedEvent
from events.reading.pages import PAGE_LIMIT, timeline

__all__ = ["timeline_of"]


def timeline_of(
    user_id: str, room_id: str, limit: int = 100, before: str | None = None, using: str = "default"
) -> Sequence[ServedEvent]:
    """Returns the last ``limit`` events of a room that the user sees, newest first, below the token ``before``.

    Reads pages until it has ``limit`` events or the room has no more. Meant for commands and tests; services read page
    by page. Raises the errors of ``timeline``.
    """
    found: list[ServedEvent] = []
    while len(found) < limit:
        page = timeline(room_id, user_id, min(limit - len(found), PAGE_LIMIT), before=before, using=using)
        found += page.events
        before = page.end
        if before is None:
            break
    return found
