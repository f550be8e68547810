"""The auth rules of m.room.power_levels: which levels a sender may change (pure).

This is rule 10 of the auth rules. Every level must have a valid form. Senders may neither set nor remove a level above
their own. They may not change the level of another user whose level is the same as theirs or higher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from state.rules.power_levels import PowerLevels, level_of, shown_level
from state.rules.room_versions import RoomVersion

_NAMED = ("users_default", "events_default", "state_default", "ban", "kick", "redact", "invite")


def level_change_refusal(sender: str, new: Mapping[str, Any], levels: PowerLevels) -> str | None:
    """Returns the reason why ``sender`` may not replace ``levels`` by the content ``new``, or None."""
    version = levels.version
    reason = _unreadable(new, version) or _names_creators(new, levels)
    if reason is not None or levels.content is None:
        return reason
    sender_level = levels.of_user(sender)
    for place, key, old_value, new_value in _changes(levels.content, new, version):
        old_level, new_level = level_of(old_value, version), level_of(new_value, version)
        if old_level == new_level:
            continue
        shown = f"{place} {key}".strip()
        if place == "users" and key != sender and old_level is not None and old_level >= sender_level:
            return f"the level of {key} is {shown_level(old_level)}, and only who has more than that may change it"
        if any(level is not None and level > sender_level for level in (old_level, new_level)):
            change = f"changing {shown_level(old_level)} to {shown_level(new_level)}"
            return f"{shown}: {change} takes more than the sender's level {shown_level(sender_level)}"
    return None


def _names_creators(new: Mapping[str, Any], levels: PowerLevels) -> str | None:
    named = set(levels.creators) & set(new.get("users") or {}) if levels.version.room_id_is_create_hash else None
    return f"users names {min(named)}, a creator, whose level is above every number" if named else None


def _unreadable(content: Mapping[str, Any], version: RoomVersion) -> str | None:
    if reason := _unreadable_users(content.get("users", {}), version):
        return reason
    for place in ("events", "notifications"):
        entries = content.get(place, {})
        if not isinstance(entries, dict):
            if place == "events" or version.integer_power_levels:
                return f"{place} is not an object"
        elif _checked(place, version) and any(level_of(value, version) is None for value in entries.values()):
            return f"{place} holds a level that is no integer"
    for name in _NAMED:
        if name in content and level_of(content[name], version) is None:
            return f"{name} is no integer"
    return None


def _unreadable_users(users: Any, version: RoomVersion) -> str | None:
    if not isinstance(users, dict):
        return "users is not an object"
    for user, value in users.items():
        if not user.startswith("@") or ":" not in user:
            return f"users names {user!r}, which is no user ID"
        if level_of(value, version) is None:
            return f"the level of {user} is no integer"
    return None


def _checked(place: str, version: RoomVersion) -> bool:
    return place != "notifications" or version.checks_notification_levels


def _changes(
    old: Mapping[str, Any], new: Mapping[str, Any], version: RoomVersion
) -> Iterator[tuple[str, str, Any, Any]]:
    # ``key`` is the user, event type or notification; empty if the value under the name is itself the level.
    for name in _NAMED:
        yield name, "", old.get(name), new.get(name)
    for place in ("users", "events", "notifications"):
        if not _checked(place, version):
            continue
        before, after = _entries(old, place), _entries(new, place)
        for key in {**before, **after}:
            yield place, key, before.get(key), after.get(key)


def _entries(content: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    entries = content.get(place)
    return entries if isinstance(entries, dict) else {}
