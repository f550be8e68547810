"""Shares one rendering of metrics between concurrent scrapes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

#: The pause after a rendering, as a multiple of its duration, and the longest pause.
REST_FACTOR, LONGEST_REST_SECONDS = 3.0, 0.9


class SharedRendering:
    """A page that is rendered once for all requests that arrive before the rendering begins.

    A page is never older than its request. Otherwise a sum could seem to fall: one process returns a new sum, then
    another process returns an older page. Rendering holds the interpreter lock, so there is a pause between two
    renderings. The pause is `REST_FACTOR` times as long as the last rendering, at most `LONGEST_REST_SECONDS`. So, unless
    this maximum is reached, rendering takes no more than a quarter of a core, however many clients scrape.
    """

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._page = b""
        self._started = self._next = -math.inf

    def get(self, asked: float) -> bytes:
        """Returns a page whose rendering began after ``asked``, the request's arrival in ``time.monotonic()`` seconds.

        Blocks while a page is rendered, and during the pause before the next one.
        """
        # `asked` is the time of the request's arrival, not the time at which a thread serves it. Example: 400 scrapes arrive at
        # once, and four are served at a time. If the later time counted, every four would need a page of their own, and the
        # last would time out.
        with self._lock:
            if self._started < asked:
                time.sleep(max(self._next - time.monotonic(), 0.0))
                started = time.monotonic()
                self._page = self._render()
                self._started, done = started, time.monotonic()
                self._next = done + min(REST_FACTOR * (done - started), LONGEST_REST_SECONDS)
            return self._page
