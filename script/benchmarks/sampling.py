"""Figures of processes that have to be read while they live: a thread reads them every so often."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Sampling"]


class Sampling(ABC):
    """For the length of a block, ``sample`` is called every ``seconds``, and ``ended`` once in the same thread."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def sample(self) -> None:
        """Read and keep the figures."""

    def ended(self) -> None:  # noqa: B027 - most have nothing
        """Let go what the thread has."""

    def _work(self) -> None:
        while not self._stop.wait(self._seconds):
            self.sample()
        self.ended()
