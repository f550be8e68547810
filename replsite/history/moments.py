"""Parses times in query strings."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from django.http import Http404

from streams.runtime.moments import FORMS, moment_ms


def moment_of(text: str) -> datetime:
    """Parses a time such as ``2026-11-21T12:00`` as the commands do, to the millisecond. Raises ``Http404`` for other text."""
    try:
        return datetime.fromtimestamp(moment_ms(text, time.time_ns() // 1_000_000) / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # the last two: milliseconds after the year 9999
        raise Http404(f"{text[:40]!r} is no time: write {FORMS}.") from None
