"""Text that peers choose, for others to see: labels of metrics and history, texts on pages and terminals (pure)."""

from __future__ import annotations

import re
from collections.abc import Container, Sized
from typing import Protocol

__all__ = [
    "MOST_LABELS",
    "OTHER",
    "plain_label",
    "printable",
    "shown",
    "visible",
]

MOST_LABELS = 100
OTHER = "other"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,59}")


class _Known(Sized, Container[str], Protocol):
    pass


def plain_label(name: str, known: _Known, most: int = MOST_LABELS) -> str:
    """The name, if it is plain and known, or there is room for one more; else ``other``."""
    is_plain = _PLAIN_NAME.fullmatch(name) and (name in known or len(known) < most)
    return name if is_plain else OTHER


def shown(text: str | None, most: int = 200) -> str:
    """Text that may come from anybody, as it can stand on a page: control characters made visible, cut when it is long."""
    clean = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text or "")
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"


def printable(text: str) -> str:
    """The text with control characters, line ends and the like written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def visible(text: str) -> str:
    """The same of a text of several lines, which stay lines: what a page shows."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
