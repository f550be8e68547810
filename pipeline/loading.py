"""Several loaders of an import side by side, each with a connection of its own (driver, with Django).

Most of the work of loading is PostgreSQL's, and one session keeps one core busy. Batches begin in order and end in any:
each is a transaction that stands for itself (``pipeline.promotion``).
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from django.db import connections

from pipeline.promotion import LoadedRoom, promote

__all__ = ["MOST_LOADERS", "Loaded", "load_batches", "usual_loaders"]

MOST_LOADERS = 4


@dataclass(frozen=True, slots=True)
class Loaded:
    """A batch that is in, but for the rooms that somebody else made meanwhile."""

    rooms: Sequence[LoadedRoom]
    lost: set[str]


def usual_loaders() -> int:
    """As many as this process has cores, which are about as many as the server's on a small machine; not more than a few."""
    return min(MOST_LOADERS, len(os.sched_getaffinity(0)))


def load_batches(job: int, batches: Iterable[Sequence[LoadedRoom]], using: str, loaders: int) -> Iterator[Loaded]:
    """Load all; yields every batch when it is committed. The first error ends the others after the batch that they are at."""
    given = list(batches)
    if loaders < 2 or len(given) < 2:
        for rooms in given:
            yield Loaded(rooms, promote(job, rooms, using))
        return
    work = _Work(job, given, using)
    threads = [threading.Thread(target=work.load, name=f"loader {n}") for n in range(min(loaders, len(given)))]
    for thread in threads:
        thread.start()
    try:
        for _ in given:
            done = work.done.get()
            if isinstance(done, BaseException):
                raise done
            yield done
    finally:
        work.ended.set()
        for thread in threads:
            thread.join()


class _Work:
    """What the loaders share."""

    def __init__(self, job: int, batches: Sequence[Sequence[LoadedRoom]], using: str) -> None:
        self._job, self._using = job, using
        self._left: queue.SimpleQueue[Sequence[LoadedRoom]] = queue.SimpleQueue()
        for batch in batches:
            self._left.put(batch)
        self.done: queue.SimpleQueue[Loaded | BaseException] = queue.SimpleQueue()
        self.ended = threading.Event()

    def load(self) -> None:
        """One loader, to the end of the work."""
        try:
            while not self.ended.is_set():
                rooms = self._left.get_nowait()
                self.done.put(Loaded(rooms, promote(self._job, rooms, self._using)))
        except queue.Empty:
            pass  # all is given out
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for the batch
            self.done.put(error)
        finally:
            connections[self._using].close()
