"""One rendering of metrics for all scrapes that come before it begins."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

__all__ = ["SharedRendering"]

#: Between two renderings is so many times what one took, but no longer than this.
REST_FACTOR, LONGEST_REST_SECONDS = 3.0, 0.9


class SharedRendering:
    """One rendering for all scrapes that come before it begins.

    A page that is given is never older than the question: of several processes that show the same sums none would seem to fall.
    Rendering takes the interpreter for itself, so the next one begins when three times as long has passed: however many
    scrape, it takes no more than a quarter of a core.
    """

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._page = b""
        self._begun = self._next = -math.inf

    def get(self, asked: float) -> bytes:
        """Returns a page that was begun after ``asked``; waits for the one that is being made, and for its own.

        ``asked`` is when the question came, not when its turn did. Otherwise of 400 scrapes at once, four at a time, each four
        would make a page of their own, and the last ones give up.
        """
        with self._lock:
            if self._begun < asked:
                time.sleep(max(self._next - time.monotonic(), 0.0))
                begun = time.monotonic()
                self._page = self._render()
                self._begun, done = begun, time.monotonic()
                self._next = done + min(REST_FACTOR * (done - begun), LONGEST_REST_SECONDS)
            return self._page
