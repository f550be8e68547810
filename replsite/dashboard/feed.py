"""One tick a second for all viewers of this process.

A viewer asks for the page after the one it has; nobody is sent anything that was not asked for, so a slow, hidden or silent
browser costs nothing and no buffer grows. While nobody asks, nothing is read.

Assumes one event loop per feed. The database is read in a thread of the feed's own, whose connection is closed when the
last viewer is gone.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.db import Error as DatabaseError
from django.db import close_old_connections, connections

from replsite.dashboard.changes import changes
from replsite.dashboard.page import Page, live_page_data
from replsite.shared_snapshot import SHARED
from replsite.snapshot_views import Snapshot
from streams.logs import get_logger

__all__ = ["LiveFeed", "Tick", "feed_of_this_loop"]

log = get_logger(__name__)
TICK_SECONDS = 1.0


@dataclass(frozen=True, eq=False, slots=True)
class Tick:
    """A page with its number; or, without a page, why there is none."""

    number: int
    page: Page | None
    error: str = ""


class LiveFeed:
    """Takes a page per tick while anybody waits for one."""

    def __init__(self, get: Callable[[], Snapshot] = SHARED.get, tick_seconds: float = TICK_SECONDS) -> None:
        self._get = get
        self._tick_seconds = tick_seconds
        self._latest = Tick(0, None)
        self._waiting = 0
        self._next = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def after(self, number: int) -> Tick:
        """The first tick with a higher number; waits for it. A tick from before a pause is never given."""
        self._waiting += 1
        try:
            if self._task is None or self._task.done():
                number = max(number, self._latest.number)
                self._task = asyncio.create_task(self._run())
            while self._latest.number <= number:
                await self._next.wait()
            return self._latest
        finally:
            self._waiting -= 1

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="replsite-live") as thread:
            try:
                while self._waiting:
                    due = loop.time() + self._tick_seconds
                    page, error = await loop.run_in_executor(thread, self._read)
                    self._publish(Tick(self._latest.number + 1, page, error))
                    await asyncio.sleep(max(0.0, due - loop.time()))
            finally:
                thread.submit(connections.close_all)

    def _publish(self, tick: Tick) -> None:
        self._latest = tick
        self._next.set()
        self._next = asyncio.Event()

    def _read(self) -> tuple[Page | None, str]:
        try:
            close_old_connections()
            return live_page_data(self._get()), ""
        except DatabaseError as error:
            reason = str(error).strip().splitlines()
            log.warning("live.no_snapshot", error=reason[0] if reason else type(error).__name__)
            return None, "The database cannot be read."


@lru_cache(maxsize=8)
def message(old: Tick | None, new: Tick) -> dict[str, Any]:
    """What a viewer that has ``old`` is sent for ``new``; viewers at the same tick share it."""
    found: dict[str, Any] = {"number": new.number}
    if new.page is None:
        return found | {"error": new.error}
    return found | changes(old.page if old else None, new.page)


_feeds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LiveFeed] = weakref.WeakKeyDictionary()


def feed_of_this_loop() -> LiveFeed:
    """The feed that all viewers of this process share."""
    loop = asyncio.get_running_loop()
    feed = _feeds.get(loop)
    if feed is None:
        feed = _feeds[loop] = LiveFeed()
    return feed
