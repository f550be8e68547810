"""Text that others have chosen, made safe to show on a terminal (pure)."""

from __future__ import annotations

__all__ = ["printable", "visible"]


def printable(text: str) -> str:
    """The text with control characters, line ends and the like written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def visible(text: str) -> str:
    """The same of a text of several lines, which stay lines: what a page shows."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
