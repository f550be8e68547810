"""One tick a second for all viewers of this process.

A viewer asks for the page after the one it has; nobody is sent anything that was not asked for, so a slow, hidden or silent
browser costs nothing and no buffer grows. While nobody asks, nothing is read. However many viewers there are, a tick is one look
at the database, it is rendered once for viewers with the same rights, and what they are sent is compressed once for each page
that they may have. Only the last few pages are kept; a viewer that has an older one gets everything.

Assumes one event loop per feed. The database is read in a thread of the feed's own, whose connection is closed when the
last viewer is gone. A database that does not answer is said to be away; its answer is waited for all the same, by nobody else.
"""

from __future__ import annotations

import asyncio
import json
import weakref
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from django.db import Error as DatabaseError
from django.db import close_old_connections, connections

from replsite.dashboard.fragments import Fragments, changes, render
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


@dataclass(eq=False, slots=True)
class Tick:
    """A page with its number; or, without a page, why there is none."""

    number: int
    page: Page | None
    error: str = ""
    rendered: dict[frozenset[str], Fragments] = field(default_factory=dict)
    """By the rights of viewers."""

    def fragments(self, rights: frozenset[str]) -> Fragments | None:
        """Returns what viewers with these rights see of the page; it is rendered once."""
        if rights not in self.rendered and self.page is not None:
            self.rendered[rights] = render(self.page, rights)
        return self.rendered.get(rights)


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
        self._messages: dict[tuple[int, frozenset[str]], bytes] = {}
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

    def message(self, have: int, tick: Tick, rights: frozenset[str]) -> bytes:
        """Returns what a viewer that has page ``have`` is sent for a tick; viewers with the same rights share it."""
        old = next((one for one in self._kept if one.number == have and one is not tick), None)
        key = old.number if old is not None else 0, rights
        if tick is not self._latest:  # a viewer so slow that the next tick came first
            return _message(old, tick, rights)
        if key not in self._messages:
            self._messages[key] = _message(old, tick, rights)
        return self._messages[key]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="replsite-live") as thread:
            try:
                while self._waiting:
                    due = loop.time() + self._tick_seconds
                    self._publish(await self._look(loop.run_in_executor(thread, self._read)))
                    await asyncio.sleep(max(0.0, due - loop.time()))
            finally:
                thread.submit(connections.close_all)

    async def _look(self, reading: asyncio.Future[Tick]) -> Tick:
        """The page; meanwhile those who wait are told when it takes too long."""
        while True:
            done, _ = await asyncio.wait([reading], timeout=self._patience_seconds)
            if done:
                return reading.result()
            log.warning("live.no_answer", seconds=self._patience_seconds)
            self._publish(Tick(0, None, "The database does not answer."))

    def _publish(self, tick: Tick) -> None:
        tick.number = self._latest.number + 1
        self._latest = tick
        self._kept.append(tick)
        self._messages.clear()
        self._next.set()
        self._next = asyncio.Event()

    def _read(self) -> Tick:
        """Reads and renders the page in the feed's thread, for the rights of those who saw the last one."""
        try:
            close_old_connections()
            tick = Tick(0, live_page_data(self._get()))
            for rights in list(self._latest.rendered):
                tick.fragments(rights)
            self._no_snapshot.ends()
            return tick
        except DatabaseError as error:
            self._no_snapshot.begins(error)
            return Tick(0, None, AWAY)
        except Exception:  # a defect of ours must not leave all viewers waiting for ever
            log.exception("live.page_failed")
            return Tick(0, None, "The page cannot be made; the site's log says why.")


def _message(old: Tick | None, new: Tick, rights: frozenset[str]) -> bytes:
    found: dict[str, Any] = {"number": new.number}
    shown = new.fragments(rights)
    found |= changes(old.fragments(rights) if old else None, shown) if shown else {"error": new.error}
    return zlib.compress(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode(), 1)


_feeds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LiveFeed] = weakref.WeakKeyDictionary()


def feed_of_this_loop() -> LiveFeed:
    """The feed that all viewers of this process share."""
    loop = asyncio.get_running_loop()
    feed = _feeds.get(loop)
    if feed is None:
        feed = _feeds[loop] = LiveFeed()
    return feed
