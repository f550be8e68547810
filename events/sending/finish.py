"""Finishes federation events (pure): adds hashes, writes canonical bytes, and checks the event like any other event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from events.format import hashes
from events.format.canonical_json import encode
from events.format.parsing import ParsedEvent, parse_event
from events.format.signatures import SigningKey
from state.rules.room_versions import room_version


def finish_event(parts: Mapping[str, Any], version_name: str, key: SigningKey | None = None) -> ParsedEvent:
    """Returns the event made of ``parts`` (type, sender, content, prev_events, depth, … as in the federation format).

    Adds ``hashes``. Adds an empty ``signatures`` if ``parts`` has none. With ``key``, signs the event. ``json`` of the
    result is the canonical form. Raises ``EventRefused``, and ``NotCanonical`` for values that no event may hold.
    """
    version = room_version(version_name)
    event = {"signatures": {}, **parts}
    event["hashes"] = {"sha256": hashes.content_hash(event, version)}
    if key is not None:
        event = key.sign_event(event, version)
    return parse_event(encode(event, strict=version.strict_json), event, version_name)
