"""Answers requests with 503 while the database is away, or a table is missing, in HTML or JSON, instead of a traceback.

The HTML page reloads itself every few seconds, so the browser recovers by itself. The reason is logged once each time
the database goes away, and is never sent to the client. A missing table is named, with the command that makes it.
"""

from __future__ import annotations

import sys

from django.db import InterfaceError, OperationalError, connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.utils.deprecation import MiddlewareMixin
from django.views.defaults import server_error

from streams.db import driver
from streams.db.consistent_read import AWAY, sentence_for
from streams.runtime.logs import get_logger
from streams.runtime.text import one_line

log = get_logger(__name__)
RETRY_SECONDS = 5
_LOST = (OperationalError, InterfaceError)


class _Logged:
    """The state that was logged last: database away or back."""

    is_away = False

    @classmethod
    def record(cls, error: BaseException | None) -> None:
        """Logs the state if it changed. ``error`` None means that the database is back."""
        if error is not None and not cls.is_away:
            log.warning("site.database_away", error=one_line(error))
        elif error is None and cls.is_away:
            log.info("site.database_back")
        cls.is_away = error is not None


class DatabaseDownMiddleware(MiddlewareMixin):
    """Django middleware that answers with 503 if the database is unusable, and notices when it is back."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        """Notices that the database is back, by a connection that the request used."""
        if _Logged.is_away and any(c.connection is not None for c in connections.all(initialized_only=True)):
            _Logged.record(None)
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answers with 503 if the exception of a view shows that the database is unusable."""
        return away_response(request, exception) if _is_unusable(exception) else None


def _is_unusable(error: BaseException | None) -> bool:
    return isinstance(error, _LOST) or _is_missing(error)


def _is_missing(error: BaseException | None) -> bool:
    cause = error if isinstance(error, driver.DatabaseError) else getattr(error, "__cause__", None)
    return isinstance(cause, driver.missing)


def reason_for_viewers(error: BaseException) -> str:
    """Returns the sentence that pages show: a missing table with the command that makes it, or ``AWAY``."""
    return driver.explain(error) if _is_missing(error) else AWAY


def away_response(request: HttpRequest, error: BaseException) -> HttpResponse:
    """Returns the 503 answer: an HTML page if the client accepts HTML, JSON otherwise.

    Logs the error if the database was not known to be away.
    """
    is_missing = _is_missing(error)
    is_locked = isinstance(error.__cause__, driver.lock_timed_out)
    sentence = reason_for_viewers(error) if is_missing else sentence_for(request, error)
    if is_missing:
        log.error("site.table_missing", error=sentence)
    else:
        _Logged.record(error)
    if "text/html" in request.headers.get("Accept", ""):
        again = request.method in ("GET", "HEAD")
        context = {
            "sentence": sentence,
            "is_missing": is_missing,
            "is_locked": is_locked,
            "retry": RETRY_SECONDS if again else None,
        }
        response = HttpResponse(render_to_string("database_away.html", context), status=503)
    else:
        response = JsonResponse({"error": sentence}, status=503)
    response["Retry-After"] = str(RETRY_SECONDS)
    response["Cache-Control"] = "no-store"
    return response


def handler500(request: HttpRequest) -> HttpResponse:
    """Handles errors outside of views, such as those of middleware that reads or writes the session.

    Answers with 503 if the database is unusable, and otherwise as Django does.
    """
    error = sys.exc_info()[1]
    return away_response(request, error) if error is not None and _is_unusable(error) else server_error(request)
