"""By how much the memory of a process grows while something happens."""

from __future__ import annotations

import psutil

from script.benchmarks.sampling import Sampling

SAMPLE_SECONDS = 0.02


class MemoryWatch(Sampling):
    """The resident memory of a process."""

    def __init__(self, pid: int) -> None:
        super().__init__(SAMPLE_SECONDS)
        self._process = psutil.Process(pid)
        self._first = self._most = self._process.memory_info().rss

    @property
    def growth_bytes(self) -> int:
        """The highest sample, less the first."""
        return self._most - self._first

    def sample(self) -> None:
        """Keeps the highest."""
        self._most = max(self._most, self._process.memory_info().rss)
