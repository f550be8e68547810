"""Makes one page per second and shares it between all viewers of this process.

A viewer requests the page after the one that it shows. Nothing is sent without a request, so a slow, hidden or silent
browser costs nothing and no buffer grows. While there are no requests, nothing is read.

However many viewers there are, the database is read once per page. The page is rendered once for all viewers with the
same rights. For these viewers, the changes from an earlier page to the newest one are also compressed only once. Only the
last few pages are kept. A viewer that shows an older page gets the whole newest page.

Assumes one event loop per feed. A thread of the feed reads the database. The thread's connection is closed when the last
viewer has left. If the database does not answer in time, the viewers get an error. The feed goes on waiting for the
answer, and starts no second read meanwhile.
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
from replsite.http.database_down import reason_for_viewers
from replsite.snapshot.shared import SHARED
from replsite.snapshot.snapshot import Snapshot
from streams.runtime.logs import Condition, get_logger

__all__ = ["LiveFeed", "Tick", "feed_of_this_loop"]

log = get_logger(__name__)
TICK_SECONDS = 1.0
#: The seconds after which viewers get the error that the database does not answer.
PATIENCE_SECONDS = 5.0
#: The number of ticks whose pages are kept, to compute the changes since the page that a viewer shows.
TICKS_KEPT = 5


@dataclass(eq=False, slots=True)
class Tick:
    """A numbered page of the feed. If there is no page, ``error`` is the reason."""

    number: int
    page: Page | None
    error: str = ""
    rendered: dict[frozenset[str], Fragments] = field(default_factory=dict)
    """The page as HTML, by the rights of viewers."""

    def fragments(self, rights: frozenset[str], last: Tick | None = None) -> Fragments | None:
        """Returns the page as HTML for viewers with these rights, or None if there is no page. Renders it once.

        Takes unchanged groups from ``last``, an earlier tick.
        """
        if rights not in self.rendered and self.page is not None:
            known = None
            if last is not None and last.page is not None and rights in last.rendered:
                known = last.page, last.rendered[rights]
            self.rendered[rights] = render(self.page, rights, last=known)
        return self.rendered.get(rights)


class LiveFeed:
    """A source of pages for viewers. It makes one page per ``tick_seconds``, while at least one viewer waits."""

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
        """Waits until there is a tick with a number above ``number``, and returns the newest tick.

        The feed pauses while no viewer waits. A tick from before such a pause is never returned.
        """
        self._waiting += 1
        try:
            if self._task is None or self._task.done():
                # The feed stood still, so its latest tick may be old. The viewer waits for the next one.
                number = max(number, self._latest.number)
                self._task = asyncio.create_task(self._run())
            while self._latest.number <= number:
                await self._next.wait()
            return self._latest
        finally:
            self._waiting -= 1

    def message(self, have: int, tick: Tick, rights: frozenset[str]) -> bytes:
        """Returns the compressed message with the changes from page ``have`` to the page of ``tick``.

        If page ``have`` is not kept any more, the message has the whole page. If ``tick`` has no page, the message has
        its error. Viewers with the same rights share messages.
        """
        old = next((one for one in self._kept if one.number == have and one is not tick), None)
        key = old.number if old is not None else 0, rights
        if tick is not self._latest:  # the viewer is slow, and there is a newer tick: this message is not kept
            return _message(old, tick, rights)
        if key not in self._messages:
            self._messages[key] = _message(old, tick, rights)
        return self._messages[key]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="replsite-live")
        try:
            # Viewers ask again during the sleep. If none did, the loop ends, and the next call of after() starts it.
            while self._waiting:
                due = loop.time() + self._tick_seconds
                self._publish(await self._await_tick(loop.run_in_executor(thread, self._read)))
                await asyncio.sleep(max(0.0, due - loop.time()))
        finally:
            # Django keeps connections per thread: only the thread that opened this one can close it.
            thread.submit(connections.close_all)
            # Does not wait: when the process stops, a read may still hang because the database does not answer.
            thread.shutdown(wait=False)

    async def _await_tick(self, reading: asyncio.Future[Tick]) -> Tick:
        """Waits for the tick that is being read, and returns it.

        Each time that another ``patience_seconds`` pass without a result, publishes an error.
        """
        while True:
            # Unlike wait_for, wait does not cancel the read at the timeout: the next round waits for the same one.
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
        # Viewers that wait hold the old event and wake up. Those that ask from here on wait for the new one.
        self._next.set()
        self._next = asyncio.Event()

    def _read(self) -> Tick:
        """Takes a snapshot, builds its page, and renders the page for all rights for which the last page was rendered.

        Runs in the feed's thread. After a failure it returns a tick without a page, with the reason in ``error``.
        """
        try:
            close_old_connections()
            tick = Tick(0, live_page_data(self._get()))
            last = self._latest
            for rights in list(last.rendered):
                tick.fragments(rights, last)
            self._no_snapshot.ends()
            return tick
        except DatabaseError as error:
            self._no_snapshot.begins(error)
            return Tick(0, None, reason_for_viewers(error))
        except Exception:  # a bug in the page must not leave all viewers waiting forever
            log.exception("live.page_failed")
            return Tick(0, None, "The page cannot be made; the reason is in the site's log.")


def _message(old: Tick | None, new: Tick, rights: frozenset[str]) -> bytes:
    found: dict[str, Any] = {"number": new.number}
    shown = new.fragments(rights)
    found |= changes(old.fragments(rights) if old else None, shown) if shown else {"error": new.error}
    return zlib.compress(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode(), 1)


_feeds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LiveFeed] = weakref.WeakKeyDictionary()


def feed_of_this_loop() -> LiveFeed:
    """Returns the feed that all viewers on the running event loop share."""
    loop = asyncio.get_running_loop()
    feed = _feeds.get(loop)
    if feed is None:
        feed = _feeds[loop] = LiveFeed()
    return feed
