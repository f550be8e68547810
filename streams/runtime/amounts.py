"""Amounts in words for pages, commands and answers, and amounts that people write on a command line (pure)."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"([0-9]{1,9})([smhdw])\Z")
_COUNT = re.compile(r"[0-9]{1,18}\Z")
_SIZES = ("kB", "MB", "GB", "TB")
_SPANS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def byte_size(size: int) -> str:
    """Returns ``512 B``, ``1.5 kB`` or ``20 MB``, in decimal units."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in _SIZES:
        value /= 1000
        if value < 999.5 or unit == _SIZES[-1]:
            break
    return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"


def done_of(done: int, total: int | None, unit: str) -> str:
    """Returns ``5 of 20 events``, or ``5 events`` if the total is not known, or ``0 events`` if there was nothing to do."""
    of = f" of {total:,}" if total else ""
    return f"{done:,}{of} {unit}".rstrip()


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


def parse_duration(text: str) -> timedelta:
    """Parses ``30s``, ``15m``, ``12h``, ``7d`` or ``4w``. Raises ``ValueError``."""
    found = _DURATION.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration: write a number and a unit, such as 30s, 15m, 12h, 7d, 4w")
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise ValueError(f"{text!r} is longer than can be counted") from None


def keep_amount(text: str) -> int | timedelta:
    """Parses a number of facts, or a duration. Raises ``ValueError``."""
    if _COUNT.match(text):
        return int(text)
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError(
            f"{text!r}: give a number of facts such as 100000, or a duration such as 30s, 15m, 12h, 7d, 4w"
        ) from None
