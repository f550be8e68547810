"""Puts the content of an event into one line for people, and power levels into tables (pure).

Content comes from untrusted servers: any value may be missing or of another kind than the specification says. Such
content is shown as JSON. The returned texts are not escaped. Pages and terminals escape them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from streams.core.own_stack import on_own_stack

MOST_WORDS = 300
"""The most characters of a line."""
_LEVELS_SHOWN = 4
_LONGEST_LEVEL = 19
_TEXTS: dict[str, tuple[str, ...]] = {
    "m.reaction": ("m.relates_to", "key"),
    "m.room.avatar": ("url",),
    "m.room.canonical_alias": ("alias",),
    "m.room.encryption": ("algorithm",),
    "m.room.guest_access": ("guest_access",),
    "m.room.history_visibility": ("history_visibility",),
    "m.room.name": ("name",),
    "m.room.redaction": ("reason",),
    "m.room.third_party_invite": ("display_name",),
    "m.room.topic": ("topic",),
    "m.sticker": ("body",),
}
"""Type of event -> keys of the text in its content, from the outside in."""
_ACTIONS = {
    "events_default": ("send messages", 0),
    "state_default": ("change state", 50),
    "invite": ("invite", 0),
    "kick": ("kick", 50),
    "ban": ("ban", 50),
    "redact": ("redact messages of others", 50),
    "users_default": ("level of other users", 0),
}
"""Key in power levels -> the action in words, and the level that applies if the key is missing."""


def event_words(event_type: str, content: object) -> str:
    """Returns the content in one line, cut after ``MOST_WORDS`` characters. The content of unknown types is JSON."""
    words = ""
    if isinstance(content, Mapping):
        words = (
            _SPECIAL[event_type](content) if event_type in _SPECIAL else _text_at(content, _TEXTS.get(event_type, ()))
        )
    words = " ".join((words or _as_json(content)).split())
    return words if len(words) <= MOST_WORDS else f"{words[: MOST_WORDS - 1]}…"


def _text_at(content: Mapping[str, Any], place: tuple[str, ...]) -> str:
    found: object = content if place else None
    for key in place:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""


def _as_json(content: object) -> str:
    if content in ({}, None):
        return ""
    return on_own_stack(json.dumps, content, ensure_ascii=False, separators=(", ", ": "))


def _message(content: Mapping[str, Any]) -> str:
    body, kind = content.get("body"), content.get("msgtype")
    if not isinstance(body, str):
        return ""
    plain = not isinstance(kind, str) or kind in ("m.text", "m.notice")
    return body if plain else f"[{kind}] {body}"


def _member(content: Mapping[str, Any]) -> str:
    membership = content.get("membership")
    if not isinstance(membership, str):
        return ""
    name, reason = content.get("displayname"), content.get("reason")
    words = f'{membership}, as "{name}"' if isinstance(name, str) and name else membership
    return f"{words}, because: {reason}" if isinstance(reason, str) and reason else words


def _join_rules(content: Mapping[str, Any]) -> str:
    rule, allow = content.get("join_rule"), content.get("allow")
    if not isinstance(rule, str):
        return ""
    entries = allow if isinstance(allow, list) else []
    named = [entry.get("room_id") for entry in entries if isinstance(entry, Mapping)]
    rooms = [room for room in named if isinstance(room, str)]
    return f"{rule}, for members of {', '.join(rooms)}" if rooms else rule


def _create(content: Mapping[str, Any]) -> str:
    words = [f"version {_level(content.get('room_version', '1'))}"]
    if isinstance(kind := content.get("type"), str):
        words.append(f"type {kind}")
    before = content.get("predecessor")
    if isinstance(before, Mapping) and isinstance(before.get("room_id"), str):
        words.append(f"after {before['room_id']}")
    return ", ".join(words)


def _tombstone(content: Mapping[str, Any]) -> str:
    body, room = content.get("body"), content.get("replacement_room")
    words = body if isinstance(body, str) else ""
    return f"{words} (goes on in {room})".strip() if isinstance(room, str) else words


def _power_levels(content: Mapping[str, Any]) -> str:
    users = content.get("users")
    if not isinstance(users, Mapping) or not users:
        return ""
    listed = power_level_tables(content)["users"]
    words = ", ".join(f"{user} {level}" for user, level in listed[:_LEVELS_SHOWN])
    more = len(listed) - _LEVELS_SHOWN
    return f"{words} and {more} more" if more > 0 else words


def _server_acl(content: Mapping[str, Any]) -> str:
    counts = [len(found) if isinstance(found := content.get(name), list) else 0 for name in ("allow", "deny")]
    return f"{counts[0]} allowed, {counts[1]} denied"


def _pinned(content: Mapping[str, Any]) -> str:
    pinned = content.get("pinned")
    return f"{len(pinned)} pinned" if isinstance(pinned, list) else ""


def _encrypted(content: Mapping[str, Any]) -> str:
    algorithm = content.get("algorithm")
    return f"encrypted with {algorithm}" if isinstance(algorithm, str) else ""


_SPECIAL: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "m.room.create": _create,
    "m.room.encrypted": _encrypted,
    "m.room.join_rules": _join_rules,
    "m.room.member": _member,
    "m.room.message": _message,
    "m.room.pinned_events": _pinned,
    "m.room.power_levels": _power_levels,
    "m.room.server_acl": _server_acl,
    "m.room.tombstone": _tombstone,
}


def power_level_tables(content: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Returns three lists of pairs (name, level): ``users``, highest first, ``actions``, and ``events`` by type.

    Early room versions allow levels that are no numbers. Such a level is shown as it is written.
    """
    actions = [(words, _level(content.get(key, default))) for key, (words, default) in _ACTIONS.items()]
    notify = content.get("notifications")
    room = notify.get("room", 50) if isinstance(notify, Mapping) else 50
    return {
        "users": sorted(_pairs(content.get("users")), key=lambda pair: (-_number(pair[1]), pair[0])),
        "actions": [*actions, ("notify the whole room", _level(room))],
        "events": sorted(_pairs(content.get("events"))),
    }


def _pairs(levels: object) -> list[tuple[str, str]]:
    return [(str(name), _level(level)) for name, level in levels.items()] if isinstance(levels, Mapping) else []


def _level(level: object) -> str:
    return level if isinstance(level, str) else _as_json(level)


def _number(level: str) -> int:
    written = level.strip()
    digits = written.removeprefix("-").removeprefix("+")
    return int(written) if digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_LEVEL else 0
