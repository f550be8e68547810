"""Stored JSON bytes as text for people: indented when it can be read, and shown somehow whatever the bytes are.

For looking only: the stored bytes stay the truth, this text must never be parsed again.
"""

from __future__ import annotations

import json

__all__ = ["json_for_people"]


def json_for_people(stored: bytes | memoryview) -> str:
    """Indented JSON, or the bytes as they are when they are no JSON; always text that can be encoded and shown."""
    raw = bytes(stored)
    try:
        text = json.dumps(json.loads(raw), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = raw.decode("utf-8", "backslashreplace")
    shown = text.replace("\x00", "\\x00")
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")
