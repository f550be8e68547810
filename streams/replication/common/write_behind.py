"""Writing to the database in the background of an event loop: coalesced, in a thread of its own, retried, never in the way.

What is to be written is collected on the loop and written in the thread; a batch that could not be written is tried again
before another one is collected, so whoever collects must bound what waits meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from streams.db import driver
from streams.runtime.logs import Condition, get_logger

__all__ = ["Flusher"]

log = get_logger(__name__)
B = TypeVar("B")
RETRY_SECONDS = 1.0


class Flusher(Generic[B]):
    """Writes what ``collect`` gives (None: nothing) soon after `wake`, at least ``gap_seconds`` apart.

    Without a wake it looks each ``idle_seconds``. ``close`` is called in the thread at the end.
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
        self._unwritten: B | None = None
        self._away = Condition(log, "flusher.database_away", "flusher.database_back", flusher=name)
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; called on the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def wake(self) -> None:
        """There is something to write; called on the loop."""
        self._wake.set()

    async def run(self, work: Callable[[], None]) -> None:
        """Do something in the thread now; what it raises is the caller's."""
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def stop(self) -> None:
        """Write what is left, once, and end. A write that is under way is waited for: it must not happen twice."""
        if self._task is not None:
            self._stopping.set()
            self._wake.set()
            await self._task
            self._task = None
            if await self._flush():
                await self._flush()  # what came while a batch was tried again
        await self.run(self._close)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            await _wait(self._wake, self._idle_seconds)
            self._wake.clear()
            written = await self._flush()
            if not written:
                self._wake.set()
            await _wait(self._stopping, self._gap_seconds if written else RETRY_SECONDS)

    async def _flush(self) -> bool:
        if self._unwritten is not None:
            self._wake.set()  # whoever woke us meanwhile has something of his own
        else:
            self._unwritten = self._collect()
        if self._unwritten is None:
            return True
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, self._unwritten)
        except driver.connection_gone as error:
            self._note(error)
            return False
        except Exception:  # a batch that cannot be written must not keep all later ones from it
            log.exception("flusher.batch_lost", flusher=self._name)
        else:
            self._note(None)
        self._unwritten = None
        return True

    def _note(self, error: Exception | None) -> None:
        """One line when it begins to fail, one when it is over."""
        if error is not None:
            self._away.begins(error)
        else:
            self._away.ends()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """For the event, but no longer."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
