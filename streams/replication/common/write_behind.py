"""Writes to the database in the background of an event loop: in batches, in a thread of its own, with retries.

Batches are collected on the event loop and written in the thread. If the database is unreachable, the batch is retried
before the next batch is collected. So the function ``collect`` must bound the data that waits meanwhile. If a batch
fails with another error, it is dropped and the error is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from streams.db import driver
from streams.runtime.logs import Condition, get_logger

log = get_logger(__name__)
B = TypeVar("B")
RETRY_SECONDS = 1.0


class BackgroundWriter(Generic[B]):
    """A background task that calls ``collect`` on the event loop, and passes the collected batch to ``write`` in a thread.

    Writes nothing if ``collect`` returns None. Two writes are at least ``gap_seconds`` apart. ``collect`` is called
    after `wake`, and at least every ``idle_seconds``. ``close`` is called in the thread at the end.
    """

    def __init__(
        self,
        name: str,
        collect: Callable[[], B | None],
        write: Callable[[B], None],
        *,
        gap_seconds: float,
        idle_seconds: float = 5.0,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._collect = collect
        self._write = write
        self._gap_seconds = gap_seconds
        self._idle_seconds = idle_seconds
        self._close = close
        #: The batch that was collected and is not written yet. It survives a lost connection, and is written next.
        self._unwritten: B | None = None
        self._away = Condition(log, "flusher.database_away", "flusher.database_back", flusher=name)
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the background task. Must be called on the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def wake(self) -> None:
        """Requests a write. Must be called on the event loop."""
        self._wake.set()

    async def run(self, work: Callable[[], None]) -> None:
        """Runs ``work`` in the writing thread, after the present write. Waits for the end of ``work``, and raises its error."""
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def stop(self) -> None:
        """Ends the background task, and makes one attempt to write the remaining data.

        First waits for the end of the present write. A cancelled write would finish anyway, and its batch would be
        written twice.
        """
        if self._task is not None:
            self._stopping.set()
            self._wake.set()
            await self._task
            self._task = None
            if await self._flush():
                await self._flush()  # the first call may have written a batch from before, and collected nothing
        await self.run(self._close)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            await _wait(self._wake, self._idle_seconds)
            # Cleared before the batch is collected. In the other order: data arrives during the write and sets the event, the
            # event is cleared, and the data waits for ``idle_seconds``.
            self._wake.clear()
            written = await self._flush()
            if not written:
                self._wake.set()  # try again after RETRY_SECONDS, not after idle_seconds
            await _wait(self._stopping, self._gap_seconds if written else RETRY_SECONDS)

    async def _flush(self) -> bool:
        if self._unwritten is not None:
            self._wake.set()  # calls of `wake` since then were for newer data, which the next turn collects
        else:
            self._unwritten = self._collect()
        if self._unwritten is None:
            return True
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, self._unwritten)
        except driver.connection_lost as error:
            self._away.begins(error)
            return False
        except Exception:  # a batch that can never be written must not block all later ones
            log.exception("flusher.batch_lost", flusher=self._name)
        else:
            self._away.ends()
        self._unwritten = None
        return True


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
