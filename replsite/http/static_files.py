"""Serves static files by WhiteNoise, without keeping the thread of each other request.

WhiteNoise's middleware is only synchronous. Under ASGI, Django keeps a thread for as long as such a middleware waits for
the view, so each long poll would keep its place (``replsite.http.request_places``).

WhiteNoise finds the files once, with their lengths. A file that is changed later would be sent with the length of before: cut
off, or with less than was announced. So a request looks whether its file is still the one that was found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import NotARegularFileError


class StaticFiles(MiddlewareMixin):
    """Django middleware that answers requests for static files."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        self._file = WhiteNoiseMiddleware(lambda request: None)
        self._states = {address: _state(file) for address, file in self._file.files.items()}

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        """Returns the file that the request is for, if there is one."""
        address = request.path_info
        if (known := self._file.files.get(address)) is None or not self._is_current(address, known):
            return None
        file: HttpResponse | None = self._file(request)
        return file

    def _is_current(self, address: str, known: Any) -> bool:
        """Finds a file that changed again. Returns false if it is not there."""
        if (now := _state(known)) == self._states.get(address):
            return True
        plain = max((path for _, path, _ in known.alternatives), key=lambda path: -len(path))  # the others end in .gz
        with suppress(OSError, NotARegularFileError):
            self._file.add_file_to_dictionary(address, plain)
            self._states[address] = now
            return True
        return False


def _state(file: Any) -> tuple[tuple[int, int], ...]:
    """Returns length and time of change of a file and of its compressed forms. A form that is not there has zeros."""
    found = []
    for _, path, _ in getattr(file, "alternatives", ()):  # a redirect to a folder's index has none
        try:
            status = Path(path).stat()
            found.append((status.st_size, status.st_mtime_ns))
        except OSError:
            found.append((0, 0))
    return tuple(found)
