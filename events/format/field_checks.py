"""Checks single fields of an event. Each error names the field (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from events.errors import EventRefused, Reason
from state.rules.room_versions import RoomVersion

__all__ = [
    "IDENTIFIER_LIMIT_BYTES",
    "boolean",
    "identifier",
    "integer",
    "optional_identifier",
    "references",
    "required",
    "shown",
    "storable",
]

IDENTIFIER_LIMIT_BYTES = 255
"""Longest event ID, room ID, user ID, type or state key, in UTF-8."""
_LARGEST_BIGINT = 2**63 - 1
_KINDS: dict[type, str] = {str: "a string", int: "an integer", dict: "an object", list: "an array", bool: "a boolean"}


def required(event: Mapping[str, Any], name: str, kind: type) -> Any:
    """Returns a field that must be present and of exactly that type."""
    try:
        value = event[name]
    except KeyError:
        raise EventRefused(Reason.MISSING_KEY, f"{name} is missing") from None
    if type(value) is not kind:
        raise EventRefused(Reason.WRONG_TYPE, f"{name} is {shown(value)} and should be {_KINDS[kind]}")
    return value


def storable(value: Any, name: str, limit_bytes: int | None = IDENTIFIER_LIMIT_BYTES) -> str:
    """Returns a string that a text column can hold: without NUL, valid Unicode, and short enough for an index."""
    if type(value) is not str:
        raise EventRefused(Reason.WRONG_TYPE, f"{name} is {shown(value)} and should be a string")
    if "\0" in value:
        raise EventRefused(Reason.NUL_CHARACTER, f"{name} holds the character U+0000, which cannot be stored")
    size = len(value) if value.isascii() else _encoded_size(value, name)
    if limit_bytes is not None and size > limit_bytes:
        raise EventRefused(Reason.IDENTIFIER_TOO_LONG, f"{name} has {size} bytes; at most {limit_bytes} are allowed")
    return value


def _encoded_size(value: str, name: str) -> int:
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise EventRefused(Reason.BAD_UNICODE, f"{name} holds half of a surrogate pair") from None


def identifier(event: Mapping[str, Any], name: str, sigil: str = "") -> str:
    """Returns a required Matrix identifier that begins with its sigil."""
    found = event.get(name)
    if _is_plain(found, sigil):
        return found
    value = storable(required(event, name, str), name)
    if not value.startswith(sigil):
        raise EventRefused(Reason.BAD_IDENTIFIER, f"{name} is {shown(value)} and should begin with {sigil!r}")
    return value


def _is_plain(value: Any, sigil: str) -> TypeGuard[str]:
    """Returns true for most storable identifiers. The others need a closer look."""
    return (
        type(value) is str
        and len(value) <= IDENTIFIER_LIMIT_BYTES
        and value.startswith(sigil)
        and value.isascii()
        and "\0" not in value
    )


def optional_identifier(value: Any) -> str | None:
    """Returns an identifier named in content, or null if a column cannot hold it. Content may be anything."""
    if value is None:
        return None
    if type(value) is not str or "\0" in value or len(value.encode()) > IDENTIFIER_LIMIT_BYTES:
        return None
    return value


def integer(event: Mapping[str, Any], name: str, least: int) -> int:
    """Returns a required integer between ``least`` and 2^63 - 1."""
    value = event.get(name)
    if type(value) is int and least <= value <= _LARGEST_BIGINT:
        return value
    value = required(event, name, int)
    if not least <= value <= _LARGEST_BIGINT:
        shown = value if value.bit_length() < 200 else "far too large"
        raise EventRefused(Reason.OUT_OF_RANGE, f"{name} is {shown}; it must lie between {least} and {_LARGEST_BIGINT}")
    return int(value)


def boolean(value: Any, name: str) -> bool:
    """Returns a flag of the wrapper. Absent and null mean false."""
    if value is None:
        return False
    if type(value) is not bool:
        raise EventRefused(Reason.WRONG_TYPE, f"{name} is {shown(value)} and should be a boolean")
    return value


def references(event: Mapping[str, Any], name: str, version: RoomVersion, own_id: str) -> tuple[str, ...]:
    """Returns the IDs in ``prev_events`` or ``auth_events``, in the event's order and without repetitions."""
    found: dict[str, None] = {}
    hashed = version.ids_are_hashes
    for entry in required(event, name, list):
        if hashed and _is_plain(entry, "$"):
            found[entry] = None
        else:
            found[_reference(entry if hashed else _old_reference(entry, name), name)] = None
    if own_id in found:
        raise EventRefused(Reason.BAD_REFERENCE, f"{name} names the event itself")
    return tuple(found)


def _reference(value: Any, name: str) -> str:
    reference = storable(value, f"an entry of {name}")
    if not reference.startswith("$"):
        raise EventRefused(Reason.BAD_REFERENCE, f"{name} names {shown(reference)}, which is no event ID")
    return reference


def _old_reference(entry: Any, name: str) -> Any:
    """Returns the ID in ``[id, {"sha256": hash}]``, the form of room versions 1 and 2."""
    if type(entry) is not list or len(entry) != 2:
        raise EventRefused(Reason.BAD_REFERENCE, f"{name} holds {shown(entry)}; it should hold pairs of ID and hashes")
    return entry[0]


def shown(value: Any) -> str:
    """Returns a value for an error message. Strings and numbers are shortened; of other values only the type is given."""
    text = repr(value) if type(value) in (str, int, float, bool, type(None)) else _KINDS.get(type(value), "a value")
    return text if len(text) <= 100 else text[:100] + "…"
