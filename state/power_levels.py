"""Power levels as the room's rules read them (pure)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from state.room_versions import RoomVersion

__all__ = ["PowerLevels"]

_CREATOR_LEVEL = 100


@dataclass(frozen=True, slots=True)
class PowerLevels:
    """The levels that hold at a point of a room.

    ``content`` is that of the power level event, null while there is none: then creators have 100 and others 0. In
    room version 12 creators are above every number.
    """

    version: RoomVersion
    content: Mapping[str, Any] | None
    creators: Collection[str]

    def of_user(self, user_id: str) -> float:
        """The level of a user."""
        if user_id in self.creators:
            if self.version.room_id_is_create_hash:
                return math.inf
            if self.content is None:
                return _CREATOR_LEVEL
        content = self.content or {}
        users = content.get("users")
        own = users.get(user_id) if isinstance(users, dict) else None
        level = self._number(own)
        return level if level is not None else self._number(content.get("users_default")) or 0

    def to_redact(self) -> float:
        """The level that redacting others' events takes."""
        level = self._number((self.content or {}).get("redact"))
        return 50 if level is None else level

    def _number(self, value: Any) -> int | None:
        """A level as written; before version 10 strings of digits count too."""
        if type(value) is int:
            return value
        if not self.version.integer_power_levels and type(value) is str and len(value) < 20:
            try:
                return int(value)
            except ValueError:
                return None
        return None
