"""Serves static files by WhiteNoise, without keeping the thread of each other request.

WhiteNoise's middleware is only synchronous. Under ASGI, Django keeps a thread for as long as such a middleware waits for
the view, so each long poll would keep its place (``replsite.http.request_places``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFiles(MiddlewareMixin):
    """Django middleware that answers requests for static files."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        self._file = WhiteNoiseMiddleware(lambda request: None)

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        """Returns the file that the request is for, if there is one."""
        file: HttpResponse | None = self._file(request)
        return file
