"""Several loaders of an import side by side, while Spark works out rooms and after (driver, with Django).

Most of the work of loading is PostgreSQL's, and one session keeps one core busy. Each loader is a thread with a connection of
its own: it takes rooms that are worked out, some thousand events at a time, and loads them in a transaction that stands for
itself (``pipeline.importing.load_rooms``). As long as rooms are being worked out, loaders wait until there is a whole batch.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from django.db import connections

from pipeline.errors import LoaderFailed
from pipeline.importing.load_rooms import EVENTS_PER_BATCH, LoadedRoom, batches, promote

__all__ = ["MOST_LOADERS", "Loaded", "Loading", "ReadyRooms", "usual_loaders"]

MOST_LOADERS = 4
_WAIT_SECONDS = 0.5
_PAUSES_PER_LOOK = 25
"""A look at what is ready is followed by a pause so many times as long, so that looking stays cheap."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A batch that is in, but for the rooms that somebody else made meanwhile."""

    rooms: Sequence[LoadedRoom]
    lost: set[str]


def usual_loaders() -> int:
    """One more than this process has cores, which are about as many as the server's on a small machine; not more than a few.

    A loader waits for the disk at times: WAL is written, a table grows.
    """
    return min(MOST_LOADERS, len(os.sched_getaffinity(0)) + 1)


class ReadyRooms:
    """Hands out rooms that are worked out, each once, in batches; ``look`` tells those that are and are not loaded."""

    def __init__(self, look: Callable[[], Sequence[LoadedRoom]], events: int = EVENTS_PER_BATCH) -> None:
        self._look, self._events = look, events
        self._left: deque[LoadedRoom] = deque()
        self._events_left = 0
        self._given: set[int] = set()
        self._all_worked_out = threading.Event()
        self._seen_all = False
        self._next_look = 0.0
        self._lock = threading.Lock()

    def finish(self) -> None:
        """All rooms are worked out: from now on small batches are handed out, too."""
        self._all_worked_out.set()

    def take(self) -> list[LoadedRoom] | None:
        """The next batch; empty when there is none yet, null when there will be none any more."""
        with self._lock:
            if not self._seen_all and not self._has_batch():
                self._look_again()
            if not self._left and self._seen_all:
                return None
            if not self._seen_all and not self._has_batch():
                return []
            batch = next(batches(self._left, self._events))
            for room in batch:
                self._left.popleft()
                self._events_left -= room.events
            return batch

    def _has_batch(self) -> bool:
        return self._events_left >= self._events

    def _look_again(self) -> None:
        complete = self._all_worked_out.is_set()  # asked before looking: what is ready by then is seen
        begun = time.monotonic()
        if not complete and begun < self._next_look:
            return
        new = [room for room in self._look() if room.room_no not in self._given]
        self._given.update(room.room_no for room in new)
        self._left = deque(sorted([*self._left, *new], key=lambda room: room.room_no))
        self._events_left += sum(room.events for room in new)
        self._seen_all = complete
        self._next_look = time.monotonic() + _PAUSES_PER_LOOK * (time.monotonic() - begun)


class Loading:
    """Loaders, at work from ``begin`` to the end of the block at the latest."""

    def __init__(self, job: int, rooms: ReadyRooms, using: str, loaders: int) -> None:
        self._job, self._rooms, self._using = job, rooms, using
        self.events = 0
        """How many are loaded so far."""
        self._counting = threading.Lock()
        self._done: queue.SimpleQueue[Loaded | BaseException | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._most = max(loaders, 1)
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Rooms are being worked out now."""
        for number in range(self._most):
            self._threads.append(threading.Thread(target=self._load, name=f"loader {number}"))
            self._threads[-1].start()

    def __enter__(self) -> Loading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Loaders end after the batch that they are at."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def look(self) -> None:
        """Raises ``LoaderFailed`` when a loader did; for whoever waits for something else meanwhile."""
        if self._failure is not None:
            raise LoaderFailed(self._failure)

    def loaded(self) -> Iterator[Loaded]:
        """Every batch when it is committed, to the last one, which comes when all rooms are worked out.

        The first error is raised, and ends the loaders after the batch that they are at.
        """
        at_work = len(self._threads)
        while at_work:
            done = self._done.get()
            if isinstance(done, BaseException):
                raise done
            if done is None:
                at_work -= 1
            else:
                yield done

    def _load(self) -> None:
        """One loader, to the end of the work."""
        try:
            while not self._ended.is_set() and (rooms := self._rooms.take()) is not None:
                if rooms:
                    self._count(Loaded(rooms, promote(self._job, rooms, self._using)))
                else:
                    self._ended.wait(_WAIT_SECONDS)
            self._done.put(None)
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for the batch
            self._failure = error
            self._ended.set()
            self._done.put(error)
        finally:
            connections[self._using].close()

    def _count(self, loaded: Loaded) -> None:
        with self._counting:
            self.events += sum(room.events for room in loaded.rooms)
        self._done.put(loaded)
