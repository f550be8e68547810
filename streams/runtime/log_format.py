"""Formats log entries: each entry is one line, as ``key=value`` or JSON.

The entries of this program are formatted, and those of Django, daphne, Twisted, py4j and Python. ``logging_config``
returns the value for Django's ``LOGGING``. Whatever text is logged, the entry is safe to show on a terminal. Control
characters, and characters that change the direction of text, are escaped. Long values are cut. The secrets of the site,
and passwords in addresses, are masked. Fields of the current connection or request come from structlog's context.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import threading
from collections.abc import Iterable
from typing import Any

import structlog

from streams.runtime.logs import LineBound
from streams.runtime.masking import masked
from streams.runtime.text import safe_text

FORMS = ("key-value", "json")
LONGEST_VALUE = 2_000
LONGEST_TRACE = 20_000
#: The most log entries about refused requests in one period, the length of this period in seconds, and the most characters
#: of such an entry.
REFUSED_LINES, REFUSED_SECONDS, LONGEST_REFUSED = 10, 10.0, 200
#: If a text is cut, so many characters after its new end are searched for secrets, too. So a secret across the end is found.
_MORE = 1_000
_ODD_IN_KEYS = re.compile(r"[^\w.-]")
EventDict = dict[str, Any]


class Cleaner:
    """The last processor of structlog before rendering: shortens, escapes and masks keys and values."""

    def __init__(self, form: str, secrets: Iterable[str] = ()) -> None:
        self._is_json = form == "json"
        self._secrets = frozenset(secrets)

    def __call__(self, _: Any, __: str, event: EventDict) -> EventDict:
        return {self._key(key): self._value(key, value) for key, value in event.items()}

    def _key(self, key: Any) -> str:
        return _ODD_IN_KEYS.sub("_", str(key))[:100] or "_"

    def _value(self, key: Any, value: Any) -> Any:
        if _is_number(value):
            return value
        if isinstance(value, dict | list | tuple | set | frozenset):
            value = self._plain(value)
            return value if self._is_json else self._text(json.dumps(value, default=str), LONGEST_VALUE)
        if key == "exception":
            lines = masked(str(value)[: LONGEST_TRACE + _MORE], self._secrets)[:LONGEST_TRACE].split("\n")
            return "\n".join(self._text(line, LONGEST_VALUE) for line in lines)
        return self._text(str(value), LONGEST_VALUE)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._text(str(key), 200): self._plain(inner) for key, inner in list(value.items())[:100]}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._plain(inner) for inner in list(value)[:100]]
        return value if _is_number(value) else self._text(str(value), LONGEST_VALUE)

    def _text(self, text: str, most: int) -> str:
        length, text = len(text), masked(text[: most + _MORE], self._secrets)
        if length > most:
            text = f"{text[:most]}... ({length} characters)"
        return safe_text(text, None)


def _is_number(value: Any) -> bool:
    # JSON cannot represent infinity and NaN.
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


class RefusedRequests(logging.Filter):
    """A filter that bounds the log entries of refused requests (status 4xx or 503): their number, length and traceback.

    Any client can cause such requests, as fast as it can send. Metrics count all refused requests.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bound = LineBound(REFUSED_LINES, REFUSED_SECONDS)

    def filter(self, record: logging.LogRecord) -> bool:
        """Shortens the entry of a refused request, removes its traceback, and returns true. Returns true for other entries.

        After ``REFUSED_LINES`` entries of refused requests within ``REFUSED_SECONDS``, returns false, which drops the entry.
        """
        status = getattr(record, "status_code", 0)
        if not (400 <= status < 500 or status == 503):
            return True
        if not self._bound.has_room():
            return False
        text = record.getMessage()
        cut = f"... ({len(text)} characters)" if len(text) > LONGEST_REFUSED else ""
        record.msg, record.args, record.exc_info = text[:LONGEST_REFUSED] + cut, (), None
        return True


class _Stderr(logging.StreamHandler[Any]):
    """A handler for standard error.

    If an entry cannot be formatted, the handler writes one line about the failure instead of a traceback.
    """

    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(sys.exc_info()[1], OSError) or self.stream.closed:
            return  # standard error cannot be written; other handlers may get the record unchanged
        record.msg, record.args, record.exc_info = "a line could not be made", (), None
        if not getattr(record, "is_second", False):
            record.is_second = True
            self.emit(record)


def _add_process(_: Any, __: str, event: EventDict) -> EventDict:
    event["process"] = os.getpid()
    return event


def logging_config(form: str, level: str, secrets: Iterable[str] = ()) -> dict[str, Any]:
    """Returns the value for Django's ``LOGGING``, and configures structlog to match it.

    Raises ``ValueError`` if ``form`` is not one of ``FORMS``.
    """
    if form not in FORMS:
        raise ValueError(f"{form!r} is no form of log lines: choose {' or '.join(FORMS)}")
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        _add_process,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    renderer: Any = (
        structlog.processors.JSONRenderer(default=str)
        if form == "json"
        else structlog.processors.LogfmtRenderer(
            key_order=["timestamp", "level", "logger", "event"], bool_as_flag=False
        )
    )
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "foreign_pre_chain": before,
        "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, Cleaner(form, secrets), renderer],
    }
    to_root: dict[str, Any] = {"handlers": [], "propagate": True}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"structured": formatter},
        "filters": {"refused_requests": {"()": RefusedRequests}},
        "handlers": {"stderr": {"()": _Stderr, "formatter": "structured", "filters": ["refused_requests"]}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Without this, Django would add handlers of its own, whose entries have another form.
            "django": to_root,
            "django.server": to_root,
            # Any client may send a wrong Host. The request is answered with 400 and counted. A traceback for each would
            # fill the log.
            "django.security.DisallowedHost": {"level": "CRITICAL"},
            "py4j": {"level": "WARNING"},  # below that it logs every call
            "twisted": {"level": "WARNING"},  # below that it logs every listener
        },
    }


def log_uncaught() -> None:
    """Makes Python log what it would print on standard error: warnings, and uncaught exceptions of any thread."""
    logging.captureWarnings(True)
    log = structlog.wrap_logger(logging.getLogger("python"), wrapper_class=structlog.stdlib.BoundLogger)

    def uncaught(kind: Any, error: BaseException, trace: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            log.critical("process.crashed", error=str(error), exc_info=(kind, error, trace))

    def in_thread(hook: threading.ExceptHookArgs) -> None:
        if hook.exc_type is not SystemExit and hook.exc_value is not None:
            who = hook.thread.name if hook.thread is not None else ""
            trace = (hook.exc_type, hook.exc_value, hook.exc_traceback)
            log.error("thread.crashed", thread=who, error=str(hook.exc_value), exc_info=trace)

    def unraisable(hook: Any) -> None:
        log.warning("error.not_raised", error=str(hook.exc_value), where=repr(hook.object))

    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, in_thread, unraisable
