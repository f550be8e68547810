"""Amounts on a command line (pure): numbers of facts to keep, and durations."""

from __future__ import annotations

import re
from datetime import timedelta

__all__ = ["duration", "keep_amount"]

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"([0-9]{1,9})([smhdw])\Z")
_COUNT = re.compile(r"[0-9]{1,18}\Z")


def duration(text: str) -> timedelta:
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
        return duration(text)
    except ValueError:
        raise ValueError(
            f"{text!r}: give a number of facts such as 100000, or a duration such as 30s, 15m, 12h, 7d, 4w"
        ) from None
