"""Formats times, sizes and counts for people (pure). The page, the commands and the health answers share these forms."""

from __future__ import annotations

from streams.runtime.amounts import byte_size

__all__ = ["byte_size", "count", "counted", "duration"]

_SPANS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def duration(seconds: float) -> str:
    """Returns ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 4 min`` or ``5 d 1 h``. Negative values count as 0."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return "0 s" if seconds == 0 else f"{max(seconds, 0.1):.1f} s"
    whole = round(seconds)
    for size, unit, small_size, small_unit in _SPANS:
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"


def count(number: int) -> str:
    """Returns a number such as ``1,234``."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Returns ``1 fact`` or ``2,000 facts``. The plural adds an s."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
