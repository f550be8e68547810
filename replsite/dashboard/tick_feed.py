"""One tick a second for all viewers of this process.

A viewer asks for the page after the one it has; nobody is sent anything that was not asked for, so a slow, hidden or silent
browser costs nothing and no buffer grows. While nobody asks, nothing is read. However many viewers there are, a tick is one look
at the database, and what viewers are sent for it is written down once for each page that they may have: only the last few are
kept, whoever has an older one gets everything.

Assumes one event loop per feed. The database is read in a thread of the feed's own, whose connection is closed when the
last viewer is gone. A database that does not answer is said to be away; its answer is waited for all the same, by nobody else.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from django.db import Error as DatabaseError
from django.db import close_old_connections, connections

from replsite.dashboard.diff import changes
from replsite.dashboard.page import Page, live_page_data
from replsite.http.database_down import AWAY
from replsite.snapshot.shared import SHARED
from replsite.snapshot.types import Snapshot
from streams.runtime.logs import Condition, get_logger

__all__ = ["LiveFeed", "Tick", "feed_of_this_loop"]

log = get_logger(__name__)
TICK_SECONDS = 1.0
#: A look at the database that takes longer is told as a database that does not answer.
PATIENCE_SECONDS = 5.0
#: Pages of so many ticks are kept, to tell what changed since.
TICKS_KEPT = 5


@dataclass(frozen=True, eq=False, slots=True)
class Tick:
    """A page with its number; or, without a page, why there is none."""

    number: int
    page: Page | None
    error: str = ""


class LiveFeed:
    """Takes a page per tick while anybody waits for one."""

    def __init__(
        self,
        get: Callable[[], Snapshot] = SHARED.get,
        tick_seconds: float = TICK_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._get = get
        self._tick_seconds = tick_seconds
        self._patience_seconds = patience_seconds
        self._latest = Tick(0, None)
        self._kept: deque[Tick] = deque(maxlen=TICKS_KEPT)
        self._texts: dict[int, str] = {}
        self._waiting = 0
        self._next = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._no_snapshot = Condition(log, "live.no_snapshot", "live.snapshot_again")

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

    def text(self, have: int, tick: Tick) -> str:
        """What a viewer that has page ``have`` is sent for a tick, as JSON; the same text for all that have it."""
        old = next((one for one in self._kept if one.number == have and one.page is not None), None)
        key = old.number if old is not None and old is not tick else 0
        if tick is not self._latest:  # a viewer so slow that the next tick came first
            return _text(old if key else None, tick)
        if key not in self._texts:
            self._texts[key] = _text(old if key else None, tick)
        return self._texts[key]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="replsite-live") as thread:
            try:
                while self._waiting:
                    due = loop.time() + self._tick_seconds
                    page, error = await self._look(loop.run_in_executor(thread, self._read))
                    self._publish(Tick(self._latest.number + 1, page, error))
                    await asyncio.sleep(max(0.0, due - loop.time()))
            finally:
                thread.submit(connections.close_all)

    async def _look(self, reading: asyncio.Future[tuple[Page | None, str]]) -> tuple[Page | None, str]:
        """The page; meanwhile those who wait are told when it takes too long."""
        while True:
            done, _ = await asyncio.wait([reading], timeout=self._patience_seconds)
            if done:
                return reading.result()
            log.warning("live.no_answer", seconds=self._patience_seconds)
            self._publish(Tick(self._latest.number + 1, None, "The database does not answer."))

    def _publish(self, tick: Tick) -> None:
        self._latest = tick
        self._kept.append(tick)
        self._texts.clear()
        self._next.set()
        self._next = asyncio.Event()

    def _read(self) -> tuple[Page | None, str]:
        try:
            close_old_connections()
            page = live_page_data(self._get())
            self._no_snapshot.ends()
            return page, ""
        except DatabaseError as error:
            self._no_snapshot.begins(error)
            return None, AWAY
        except Exception:  # a defect of ours must not leave all viewers waiting for ever
            log.exception("live.page_failed")
            return None, "The page cannot be made; the site's log says why."


def _text(old: Tick | None, new: Tick) -> str:
    found: dict[str, Any] = {"number": new.number}
    if new.page is None:
        return json.dumps(found | {"error": new.error})
    return json.dumps(found | changes(old.page if old else None, new.page), ensure_ascii=False, separators=(",", ":"))


_feeds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LiveFeed] = weakref.WeakKeyDictionary()


def feed_of_this_loop() -> LiveFeed:
    """The feed that all viewers of this process share."""
    loop = asyncio.get_running_loop()
    feed = _feeds.get(loop)
    if feed is None:
        feed = _feeds[loop] = LiveFeed()
    return feed
