"""By how much the memory of a process grows while something happens."""

from __future__ import annotations

import threading

import psutil

SAMPLE_SECONDS = 0.02


class MemoryWatch:
    """Samples the resident memory of a process inside a ``with`` block."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._first = self._most = 0

    def __enter__(self) -> MemoryWatch:
        self._first = self._most = self._process.memory_info().rss
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def growth_bytes(self) -> int:
        """The highest sample, less the first."""
        return self._most - self._first

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._most = max(self._most, self._process.memory_info().rss)
