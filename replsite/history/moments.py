"""Parses times in query strings."""

from __future__ import annotations

import time
from datetime import datetime

from django.http import Http404

from streams.runtime.moments import FORMS
from streams.runtime.moments import moment_of as parsed


def moment_of(text: str) -> datetime:
    """Parses a time such as ``2026-11-21T12:00`` as the commands do, to the millisecond. Raises ``Http404`` for other text."""
    try:
        return parsed(text, time.time_ns() // 1_000_000)
    except ValueError:
        raise Http404(f"{text[:40]!r} is no time: write {FORMS}.") from None
