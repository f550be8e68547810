"""Points in time in human form (pure): dates, ages and milliseconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

from streams.runtime.amounts import parse_duration

FORMS = "a date (2026-01-31), a time in UTC (2026-01-31T12:00), an age (30d, 12h) or milliseconds since 1970"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DIGITS = re.compile(r"[0-9]{1,19}\Z")
_LATEST = 2**63 - 1
#: Not the ends of Python's range: differences, and the same times in other time zones, must exist, too.
_BOUNDS = datetime(1000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def moment_ms(text: str, now_ms: int) -> int:
    """Parses a date, a time, an age before ``now_ms``, or milliseconds, into milliseconds since 1970.

    A time without a zone is in UTC. A date means its first moment. Raises ``ValueError`` for any other text.
    """
    try:
        found = _parsed(text.strip(), now_ms)
    except (ValueError, OverflowError):
        found = -1
    if not 0 <= found <= _LATEST:
        raise ValueError(f"{text!r:.100} is no time: write {FORMS}")
    return found


def _parsed(text: str, now_ms: int) -> int:
    if _DIGITS.match(text):
        return int(text)
    if text[-1:].isalpha() and "T" not in text and "Z" not in text:
        return now_ms - round(parse_duration(text).total_seconds() * 1000)
    found = datetime.fromisoformat(text)
    return round((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)


def moment_of(text: str, now_ms: int) -> datetime:
    """Parses the same forms into a time in UTC. Raises ``ValueError`` for any other text."""
    try:
        return datetime.fromtimestamp(moment_ms(text, now_ms) / 1000, UTC)
    except (OverflowError, OSError):  # milliseconds after the year 9999
        raise ValueError(f"{text!r:.100} is no time: write {FORMS}") from None


def moment_text(ms: int) -> str:
    """Returns ``22 Nov 2026 02:00 UTC``, with seconds if they are not 0."""
    try:
        found = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms:,} ms after 1970"
    seconds = f":{found.second:02}" if found.second or found.microsecond else ""
    return f"{found.day} {_MONTHS[found.month - 1]} {found.year} {found.hour:02}:{found.minute:02}{seconds} UTC"


def bounded(text: str, load: Callable[[], datetime], others: type[Exception] = ValueError) -> datetime:
    """Returns the time that ``load`` makes of PostgreSQL's text, but none outside of the years 1000 to 9000.

    PostgreSQL also stores years before Christ, years above 9999 and infinity, for which ``load`` raises ``ValueError``,
    ``OverflowError``, ``TypeError`` or ``others``. One such row must not keep a page from showing the others.
    """
    earliest, latest = _BOUNDS
    try:
        return min(max(load(), earliest), latest)
    except (ValueError, OverflowError, TypeError, others):
        return earliest if text.startswith("-") or text.endswith("BC") else latest
