"""Formats stored JSON bytes for people: indented if they can be parsed, and readable in some form otherwise.

The formatted text is for display only. Code must parse the stored bytes instead.
"""

from __future__ import annotations

import json

from streams.runtime.text import inert_text


def pretty_json(stored: bytes | memoryview) -> str:
    """Returns indented JSON, or the bytes as text if they are not JSON.

    It can always be encoded as UTF-8. Characters that turn text round, or are not seen, are escapes.
    """
    raw = bytes(stored)
    try:
        text = json.dumps(json.loads(raw), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = raw.decode("utf-8", "backslashreplace")
    shown = text.replace("\x00", "\\x00")
    return inert_text(shown.encode("utf-8", "backslashreplace").decode("utf-8"))
