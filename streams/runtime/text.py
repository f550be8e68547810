"""Makes text from clients safe for labels of metrics and history, and for pages and terminals (pure)."""

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
#: Words of plain characters, with single spaces between them, such as ``pipeline statistics``. At most 60 characters.
_PLAIN_NAME = re.compile(r"(?=.{1,60}\Z)[A-Za-z0-9][A-Za-z0-9_.:-]*(?: [A-Za-z0-9_.:-]+)*")


class _Known(Sized, Container[str], Protocol):
    pass


def plain_label(name: str, known: _Known, most: int = MOST_LABELS) -> str:
    """Returns the name as a label, or ``other`` if the name has unusual characters or there are too many labels.

    ``known`` are the labels in use. A name outside ``known`` is accepted while there are fewer than ``most`` labels.
    """
    is_plain = _PLAIN_NAME.fullmatch(name) and (name in known or len(known) < most)
    return name if is_plain else OTHER


def shown(text: str | None, most: int = 200) -> str:
    """Returns untrusted text for a page: control characters are escaped, and text over ``most`` characters is cut."""
    clean = text or ""
    if not clean.isprintable():
        clean = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in clean)
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"


def printable(text: str) -> str:
    """Returns the text with control characters, line ends and the like written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def visible(text: str) -> str:
    """Returns the text as `printable` does, but keeps line ends and tabs. Pages use this form."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
