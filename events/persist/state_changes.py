"""Names the users whose membership an entry of a room's current state is."""

from __future__ import annotations


def users_of(event_type: str, state_key: str) -> list[str]:
    return [state_key] if event_type == "m.room.member" else []
