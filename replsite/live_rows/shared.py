"""Shares one snapshot in a process between all viewers, scrapes and probes of the same moment.

A `SharedSnapshot` also keeps the history that distinguishes a stuck reader from one that catches up. So all callers show the
same status words. Calls block, and may be made from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from replsite.live_rows.reading import read_current_snapshot
from replsite.live_rows.snapshot import Snapshot
from replsite.status.trends import History

#: The age up to which a snapshot is returned again.
FRESH_SECONDS = 0.9


class SharedSnapshot:
    """A cache of one snapshot. Callers that arrive while a new snapshot is taken wait for it and share it."""

    def __init__(self, read: Callable[[History], Snapshot] = read_current_snapshot) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._history = History()
        self._read_at = float("-inf")
        self._latest: Snapshot | None = None

    def get(self, fresh_seconds: float = FRESH_SECONDS) -> Snapshot:
        """Returns a snapshot younger than ``fresh_seconds``. Takes a new snapshot if the cached one is older.

        Raises ``django.db.Error`` if the database cannot be read. An older snapshot is never returned instead.
        """
        # The lock is held while a snapshot is taken. Callers that arrive meanwhile wait here, and then find it fresh.
        with self._lock:
            now = time.monotonic()
            if self._latest is None or now - self._read_at >= fresh_seconds:
                self._latest = None
                self._latest = self._read(self._history)
                self._read_at = now
            return self._latest


SHARED = SharedSnapshot()
