"""What a site says while its database is away: 503 with a sentence, in HTML or JSON, instead of a trace; it comes back by itself.

A page asks again every few seconds. The reason goes to the log, once for each time that the database goes, never to the client.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from django.db import InterfaceError, OperationalError, connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.views.defaults import server_error

from streams.runtime.logs import get_logger

__all__ = ["AWAY", "DatabaseAwayMiddleware", "DenyWhileDatabaseAway", "away_response", "handler500"]

log = get_logger(__name__)
AWAY = "The database cannot be read."
RETRY_SECONDS = 5
_GONE = (OperationalError, InterfaceError)


class _Said:
    """Whether the log has it already."""

    is_away = False

    @classmethod
    def note(cls, error: BaseException | None) -> None:
        """Log the change, and only that."""
        if error is not None and not cls.is_away:
            log.warning("site.database_away", error=" ".join(str(error).split()) or type(error).__name__)
        elif error is None and cls.is_away:
            log.info("site.database_back")
        cls.is_away = error is not None


class DatabaseAwayMiddleware:
    """Turns errors of a database that cannot be used into the answer that says so."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if _Said.is_away and any(one.connection is not None for one in connections.all(initialized_only=True)):
            _Said.note(None)
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Called by Django for what a view raises."""
        return away_response(request, exception) if isinstance(exception, _GONE) else None


def away_response(request: HttpRequest, error: BaseException) -> HttpResponse:
    """503: as a page for those who can show one, else as JSON."""
    _Said.note(error)
    if "text/html" in request.headers.get("Accept", ""):
        again = request.method in ("GET", "HEAD")
        text = render_to_string("database_away.html", {"sentence": AWAY, "retry": RETRY_SECONDS if again else None})
        response = HttpResponse(text, status=503)
    else:
        response = JsonResponse({"error": AWAY}, status=503)
    response["Retry-After"] = str(RETRY_SECONDS)
    response["Cache-Control"] = "no-store"
    return response


def handler500(request: HttpRequest) -> HttpResponse:
    """What Django calls for errors outside of views: the session is read and written by middleware."""
    error = sys.exc_info()[1]
    return away_response(request, error) if isinstance(error, _GONE) else server_error(request)


class DenyWhileDatabaseAway:
    """ASGI middleware: a WebSocket whose session cannot be read is refused, without a trace in the log."""

    def __init__(self, application: Callable[..., Awaitable[Any]]) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        is_open = False

        async def send_and_note(message: dict[str, Any]) -> None:
            nonlocal is_open
            is_open = is_open or message["type"] == "websocket.accept"
            await send(message)

        try:
            return await self._application(scope, receive, send_and_note)
        except _GONE as error:
            _Said.note(error)
            if is_open:
                raise
            await send({"type": "websocket.close"})
            return None
