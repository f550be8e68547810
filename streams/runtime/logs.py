"""Structured loggers on top of the standard library's ``logging``.

If this program used structlog's own loggers, a site that does not configure structlog would get the entries on its
standard output. A lasting failure is logged twice: ``Condition`` logs its beginning, and its end with the duration. On
request it also logs the failure in between, at growing intervals.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any, cast

import structlog

from streams.runtime.text import one_line

#: A failure that lasts is logged again after this time, then after twice the time, and so on up to the longest.
AGAIN_SECONDS = 10.0
LONGEST_AGAIN_SECONDS = 600.0


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Returns a structured logger that writes to ``logging.getLogger(name)``, with the site's handlers and levels."""
    wrapped = structlog.wrap_logger(logging.getLogger(name), wrapper_class=structlog.stdlib.BoundLogger)
    return cast("structlog.stdlib.BoundLogger", wrapped)


class Condition:
    """A failure that lasts for a while, such as an unreachable database.

    However often the failure is reported, only its beginning and its end are logged. If ``lasts`` is given, reports in
    between are logged, too, at growing intervals. ``lasts`` is the event name of these entries.
    """

    def __init__(self, log: Any, begins: str, ends: str, lasts: str = "", **who: Any) -> None:
        self._log = log
        self._begins, self._ends, self._lasts = begins, ends, lasts
        self._who = who
        self._since: float | None = None
        self._again_seconds = 0.0

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def begins(self, error: BaseException | str, **fields: Any) -> None:
        """Reports that the failure occurs. The first report is logged. Later reports are logged as the class describes."""
        now = time.monotonic()
        text = error if isinstance(error, str) else one_line(error)
        if self._since is None:
            self._since, self._again_seconds = now, AGAIN_SECONDS
            self._log.warning(self._begins, **self._who, error=text, **fields)
        elif self._lasts and now - self._since >= self._again_seconds:
            self._again_seconds += min(self._again_seconds, LONGEST_AGAIN_SECONDS)
            self._log.warning(self._lasts, **self._who, error=text, seconds=round(now - self._since, 1), **fields)

    def ends(self, **fields: Any) -> None:
        """Reports success. If a failure was reported before, logs its end with the duration."""
        since, self._since = self._since, None
        if since is not None:
            self._log.info(self._ends, **self._who, seconds=round(time.monotonic() - since, 1), **fields)


class LineBound:
    """A limit for log entries that clients cause: at most ``lines`` entries in each period of ``seconds``."""

    def __init__(self, lines: int, seconds: float) -> None:
        self._most, self._seconds = lines, seconds
        self._started = -math.inf
        self._lines = 0

    def has_room(self) -> bool:
        """Counts an entry. Returns true if the entry may be written, or false if the period already has ``lines`` entries."""
        now = time.monotonic()
        if now >= self._started + self._seconds:
            self._started, self._lines = now, 0
        self._lines += 1
        return self._lines <= self._most
