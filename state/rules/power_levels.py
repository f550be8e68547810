"""Power levels of a room, read by the rules of the room's version (pure)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from state.rules.room_versions import RoomVersion

_CREATOR_LEVEL = 100
_LONGEST_TEXT = 100

DEFAULT_LEVELS: Mapping[str, int] = {"ban": 50, "kick": 50, "redact": 50, "invite": 0}
"""The level that an action takes if the power levels event does not name one."""


def level_of(value: Any, version: RoomVersion) -> int | None:
    """Returns the power level that a JSON value stands for, or None.

    Before room version 10, a text of digits is also a level, and the fraction of a number is cut off.
    """
    if type(value) is int:
        return value
    if version.integer_power_levels:
        return None
    if type(value) is float and math.isfinite(value):
        return int(value)
    if type(value) is str and len(value) <= _LONGEST_TEXT:
        try:
            return int(value)
        except ValueError:
            return None
    return None


def shown_level(level: float | None) -> str:
    # Before room version 6 a level may have thousands of digits.
    return f"of {level.bit_length()} bits" if isinstance(level, int) and level.bit_length() > 200 else str(level)


def too_low(user_id: str, level: float, act: str, required: int) -> str:
    return f"the level of {user_id} is {shown_level(level)}; to {act} takes {shown_level(required)}"


def creators_of(sender: str, content: Mapping[str, Any], version: RoomVersion) -> frozenset[str]:
    # Before room version 11 the content names the creator, from 11 on it is the sender; 12 may name more.
    if not version.newer_redactions:
        creator = content.get("creator")
        return frozenset([creator] if isinstance(creator, str) else [])
    additional = content.get("additional_creators") if version.room_id_is_create_hash else None
    named = additional if isinstance(additional, list) else []
    return frozenset([sender, *(user for user in named if isinstance(user, str))])


@dataclass(frozen=True, slots=True)
class PowerLevels:
    """The power levels at one point of a room.

    ``content`` is None if the room has no power levels event.

    Then creators have level 100 and other users 0. In room version 12 creators always have an infinite level.
    """

    version: RoomVersion
    content: Mapping[str, Any] | None
    creators: Collection[str]

    def of_user(self, user_id: str) -> float:
        if user_id in self.creators:
            if self.version.room_id_is_create_hash:
                return math.inf
            if self.content is None:
                return _CREATOR_LEVEL
        level = self._entry("users", user_id)
        return level if level is not None else self._named("users_default", 0)

    def to(self, act: str) -> int:
        """Returns the level that the action ``act`` takes, a key of ``DEFAULT_LEVELS``."""
        return self._named(act, DEFAULT_LEVELS[act])

    def to_redact(self) -> int:
        return self.to("redact")

    def to_send(self, event_type: str, *, is_state: bool) -> int:
        level = self._entry("events", event_type)
        if level is not None:
            return level
        return self._named("state_default", 50) if is_state else self._named("events_default", 0)

    def _named(self, name: str, default: int) -> int:
        level = level_of((self.content or {}).get(name), self.version)
        return default if level is None else level

    def _entry(self, name: str, key: str) -> int | None:
        entries = (self.content or {}).get(name)
        return level_of(entries.get(key), self.version) if isinstance(entries, dict) else None
