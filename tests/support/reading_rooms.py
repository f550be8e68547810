"""How a user may read a room, or why not."""

from __future__ import annotations

from events.visibility.access import Access, read_access, require_readable


def readable_room(user_id: str, room_id: str) -> Access:
    """Returns how the user may read the room; raises ``UnknownRoom``, and ``NotReadable`` where they may not."""
    return require_readable(read_access(user_id, [room_id]).get(room_id), user_id, room_id)
