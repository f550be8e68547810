"""Whether an event is signed: what is signed is its pruned form, so that it survives a redaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from events.format.redaction import prune
from events.format.signatures import is_signed
from state.rules.room_versions import RoomVersion


def event_is_signed(event: Mapping[str, Any], version: RoomVersion, server: str, keys: Mapping[str, str]) -> bool:
    """Returns whether a server signed the event with one of its keys."""
    return is_signed(prune(event, version), server, keys)
