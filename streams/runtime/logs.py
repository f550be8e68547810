"""Loggers of the rooms: structured, and always through the standard library's ``logging``.

A site that does not configure structlog would otherwise get our lines on its standard output. What is logged are changes of
status, not status: ``Condition`` says once that something begins, and once that it is over and for how long it was.
"""

from __future__ import annotations

import logging
import time
from typing import Any, cast

import structlog

__all__ = ["Condition", "get_logger", "one_line"]


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A structured logger that hands its lines to ``logging.getLogger(name)``, with the site's handlers and levels."""
    wrapped = structlog.wrap_logger(logging.getLogger(name), wrapper_class=structlog.stdlib.BoundLogger)
    return cast("structlog.stdlib.BoundLogger", wrapped)


def one_line(error: BaseException) -> str:
    """What an error says, on one line; its class where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


class Condition:
    """Something that goes wrong for a while, such as a database that is away; may be told of it as often as one likes."""

    def __init__(self, log: Any, begins: str, ends: str, **who: Any) -> None:
        self._log = log
        self._begins, self._ends = begins, ends
        self._who = who
        self._since: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether it goes wrong now."""
        return self._since is not None

    def begins(self, error: BaseException | str, **fields: Any) -> None:
        """It goes wrong; one line, the first time."""
        if self._since is None:
            self._since = time.monotonic()
            text = error if isinstance(error, str) else one_line(error)
            self._log.warning(self._begins, **self._who, error=text, **fields)

    def ends(self, **fields: Any) -> None:
        """It goes well; one line, if it did not before."""
        since, self._since = self._since, None
        if since is not None:
            self._log.info(self._ends, **self._who, seconds=round(time.monotonic() - since, 1), **fields)
