"""One snapshot per process and moment, however many viewers, scrapes and probes ask at once.

Also keeps the history that tells a stuck reader from one that catches up, so all who ask see the same words. Blocks;
may be called from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from replsite.snapshot.take import take_snapshot
from replsite.snapshot.types import Snapshot
from replsite.status.trends import History

__all__ = ["SHARED", "SharedSnapshot"]

#: A snapshot younger than this is given again.
FRESH_SECONDS = 0.9


class SharedSnapshot:
    """Takes a snapshot when the last one is too old; callers that come meanwhile wait for it and share it."""

    def __init__(self, take: Callable[[History], Snapshot] = take_snapshot) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._history = History()
        self._taken_at = float("-inf")
        self._latest: Snapshot | None = None

    def get(self, fresh_seconds: float = FRESH_SECONDS) -> Snapshot:
        """The snapshot of this moment. Raises ``django.db.Error`` when the database cannot be read; never gives an old one."""
        with self._lock:
            now = time.monotonic()
            if self._latest is None or now - self._taken_at >= fresh_seconds:
                self._latest = None
                self._latest = self._take(self._history)
                self._taken_at = now
            return self._latest


SHARED = SharedSnapshot()
