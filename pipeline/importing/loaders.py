"""Runs the loader threads of an import, which load rooms while Spark computes other rooms.

Runs in Spark's driver, and needs Django.

Loading is mostly PostgreSQL's work, and one session uses one core. So there are several loaders, each a thread with its
own connection. A loader takes a batch of rooms whose rows are staged, and loads the batch in one transaction
(``pipeline.importing.load_rooms``). A full batch has some thousand events. While Spark computes rooms, loaders wait
until there is a full batch.
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
from pipeline.importing.load_rooms import EVENTS_PER_BATCH, LoadedRoom, batches, load_batch

__all__ = ["MOST_LOADERS", "Loaded", "LoaderThreads", "ReadyRooms", "default_loaders"]

MOST_LOADERS = 4
_WAIT_SECONDS = 0.5
_PAUSES_PER_LOOK = 25
"""The pause after a query for ready rooms, as a multiple of the query's duration. This pause limits the load that such
queries cause."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A committed batch. ``lost`` holds the IDs of rooms that ``load_batch`` left out."""

    rooms: Sequence[LoadedRoom]
    lost: set[str]


def default_loaders() -> int:
    """Returns the default number of loaders: one more than this process has cores, at most ``MOST_LOADERS``.

    This number assumes that PostgreSQL can use about as many cores as this process. The additional loader keeps the
    cores busy while another loader waits for the disk.
    """
    return min(MOST_LOADERS, len(os.sched_getaffinity(0)) + 1)


class ReadyRooms:
    """A queue of rooms that are ready to load. Several threads take batches from the queue. No room is in two batches.

    The function ``look`` returns the rooms whose rows are staged and that are not loaded yet.
    """

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
        """Records that the rows of all rooms are staged. After this call, ``take`` also returns batches that are not full."""
        self._all_worked_out.set()

    def take(self) -> list[LoadedRoom] | None:
        """Returns the next batch. Returns an empty list if no batch is full yet, and null if ``take`` has returned all rooms."""
        with self._lock:
            if not self._seen_all and not self._has_batch():
                self._queue_ready()
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

    def _queue_ready(self) -> None:
        """Calls ``look``, which returns the rooms that can be loaded now. Adds those to the queue that were never in the queue.

        ``look`` queries the database. So while rooms are being computed, ``look`` is called again only after some time.
        """
        # Read the flag before the query. In the other order: the query misses room R, then R is finished and the flag
        # is set, and the flag read here says that all rooms were seen. R would never be handed out.
        complete = self._all_worked_out.is_set()
        begun = time.monotonic()
        if not complete and begun < self._next_look:
            return
        new = [room for room in self._look() if room.room_no not in self._given]
        self._given.update(room.room_no for room in new)
        self._left = deque(sorted([*self._left, *new], key=lambda room: room.room_no))
        self._events_left += sum(room.events for room in new)
        self._seen_all = complete
        self._next_look = time.monotonic() + _PAUSES_PER_LOOK * (time.monotonic() - begun)


class LoaderThreads:
    """The loader threads of a job. They run from ``begin`` until all rooms are loaded or the ``with`` block ends."""

    def __init__(self, job: int, rooms: ReadyRooms, using: str, loaders: int) -> None:
        self._job, self._rooms, self._using = job, rooms, using
        self.events = 0
        """Number of events loaded so far, including those of rooms that were left out."""
        self._counting = threading.Lock()
        self._done: queue.SimpleQueue[Loaded | BaseException | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._most = max(loaders, 1)
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Starts the loaders. To be called when Spark begins to compute rooms."""
        for number in range(self._most):
            self._threads.append(threading.Thread(target=self._load, name=f"loader {number}"))
            self._threads[-1].start()

    def __enter__(self) -> LoaderThreads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the loaders after their current batches, and waits for the end of their threads."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def look(self) -> None:
        """Raises ``LoaderFailed`` if a loader has failed. To be called at intervals while the job waits for Spark."""
        if self._failure is not None:
            raise LoaderFailed(self._failure)

    def loaded(self) -> Iterator[Loaded]:
        """Yields each batch after its commit, until all rooms are loaded.

        If a loader fails, raises its error. The other loaders then end after their current batches.
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
        """Loads batches until all rooms are loaded, the ``with`` block ends, or a loader fails."""
        try:
            while not self._ended.is_set() and (rooms := self._rooms.take()) is not None:
                if rooms:
                    self._count(Loaded(rooms, load_batch(self._job, rooms, self._using)))
                else:
                    self._ended.wait(_WAIT_SECONDS)
            self._done.put(None)
        except BaseException as error:  # noqa: BLE001 - passed on to the caller of ``loaded``
            self._failure = error  # for ``look``, while the job's thread waits for Spark
            self._ended.set()
            self._done.put(error)  # for ``loaded``
        finally:
            connections[self._using].close()

    def _count(self, loaded: Loaded) -> None:
        with self._counting:
            self.events += sum(room.events for room in loaded.rooms)
        self._done.put(loaded)
