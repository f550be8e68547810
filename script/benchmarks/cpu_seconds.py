"""CPU seconds of this process with all below it, and of the whole database server on this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
from django.db import connection

__all__ = ["CpuSeconds"]


class CpuSeconds:
    """CPU seconds that passed while the block ran: what a busy machine does not blur.

    The server's include vacuum and checkpoints. A process that ends is counted by the one that waited for it.
    """

    def __init__(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SHOW data_directory")
            folder = Path(cursor.fetchone()[0])
        postmaster = int((folder / "postmaster.pid").read_text().split()[0])
        self._application, self._server = psutil.Process(), psutil.Process(postmaster)
        self.application = self.server = 0.0

    @property
    def seconds(self) -> float:
        """Of both."""
        return self.application + self.server

    def __enter__(self) -> CpuSeconds:
        self._before = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        (application, server), before = self._now(), self._before
        self.application, self.server = _spent(before[0], application), _spent(before[1], server)

    def _now(self) -> tuple[dict[int, float], dict[int, float]]:
        return _below(self._application, self._server.pid), _below(self._server)


def _below(root: psutil.Process, other: int | None = None) -> dict[int, float]:
    """Seconds by process, of ``root`` and what is below it; without the process ``other`` and what is below that."""
    found: dict[int, float] = {}
    left = [root]
    while left:
        process = left.pop()
        with suppress(psutil.NoSuchProcess):
            found[process.pid] = sum(process.cpu_times()[:4])
            left += [child for child in process.children() if child.pid != other]
    return found


def _spent(before: dict[int, float], now: dict[int, float]) -> float:
    return sum(used - before.get(process, 0.0) for process, used in now.items())
