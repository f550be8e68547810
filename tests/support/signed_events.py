"""Whether an event is signed: what is signed is its pruned form, so that it survives a redaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from events.format.redaction import prune
from events.format.signatures import signatures_of, verify_keys
from state.rules.room_versions import RoomVersion


def is_signed(value: Mapping[str, Any], server: str, keys: Mapping[str, str]) -> bool:
    """Whether ``server`` signed the object with one of its keys (key ID -> public key in base64)."""
    return verify_keys(value, [(keys[key_id], text) for key_id, text in signatures_of(value, server) if key_id in keys])


def event_is_signed(event: Mapping[str, Any], version: RoomVersion, server: str, keys: Mapping[str, str]) -> bool:
    """Returns whether a server signed the event with one of its keys."""
    return is_signed(prune(event, version), server, keys)
