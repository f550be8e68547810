"""What changed since a position, answered from memory: rooms of a user, last change of a room, last membership change of a user.

    found = hot.look("@alice:x", since)
    if found.nothing:            # no query was asked
        return nothing new, token found.now

"Changed since p?" is answered *no* or *maybe*, and *no* is never wrong: the memory of a process is fed from the rows of the
streams before a position shows that covers them, also with several writer processes, and what this process committed
itself is seen by whoever asks afterwards (``events.notifier.feed``). An answer is good up to its own ``now`` and not beyond:
that is what a keeper of tokens goes on from.

``wait`` and ``await_news`` let a caller sleep until something may concern a user. In a process that forks, a child begins anew.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence

from events.arguments import can_be_stored
from events.notifier.cache import HotFigures, Look
from events.notifier.feed import HotFeed
from events.notifier.routing import Kind
from events.notifier.stream_cache import At
from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.db import driver
from streams.reading import cache_feed
from streams.reading.pokes import Poke
from streams.runtime.logs import get_logger
from streams.writing import process, writer

__all__ = [
    "At",
    "Look",
    "await_news",
    "figures",
    "forget_feeds",
    "look",
    "may_have_changed",
    "membership_changed_since",
    "movers_since",
    "news",
    "now",
    "positions",
    "rooms_changed_since",
    "rooms_of",
    "wait",
    "waiting",
]

log = get_logger(__name__)
_NOBODY = ""
"""Stands for users whose ID cannot be stored: they are in no room."""


def look(user_id: str, since: VectorToken, using: str | None = None) -> Look:
    """What may have changed for the user since a position of ``events``.

    From memory; the first question about a user reads the rooms on a connection of its own, so never with the eyes of
    the caller's transaction.
    """
    return _feed(using).ask(user_id if can_be_stored(user_id) else _NOBODY, since)


def may_have_changed(user_id: str, since: VectorToken, using: str | None = None) -> frozenset[str] | None:
    """Joined rooms that may have changed; empty: nothing new, memberships included; None: it cannot be told."""
    found = look(user_id, since, using)
    return None if found.memberships_changed else found.changed


def rooms_of(user_id: str, using: str | None = None) -> frozenset[str]:
    """The rooms that the user is joined to now."""
    return look(user_id, VectorToken(0), using).rooms


def rooms_changed_since(rooms: Collection[str], since: VectorToken, using: str | None = None) -> frozenset[str] | None:
    """Those of the rooms in which something may have happened since; None: in any of them. Good up to ``now()`` of before."""
    feed = _feed(using)
    feed.positions()
    changed = feed.changed("events", Kind.ROOM, since)
    return None if changed is None else changed & frozenset(rooms)


def membership_changed_since(user_id: str, since: VectorToken, using: str | None = None) -> bool:
    """Whether the user's membership of any room may have changed since."""
    return look(user_id, since, using).memberships_changed


def movers_since(since: VectorToken, using: str | None = None) -> frozenset[str] | None:
    """The users whose membership of any room may have changed since; None: it may have been anybody."""
    feed = _feed(using)
    feed.positions()
    return feed.changed("events", Kind.USER, since)


def now(stream: str = "events", using: str | None = None) -> VectorToken | None:
    """Up to where the memory of a stream is complete; None while nothing is heard of it."""
    at = positions(using).get(stream)
    return None if at is None else at.token


def positions(using: str | None = None) -> Mapping[str, At]:
    """Up to where the memory of each stream is complete; empty while nothing is heard."""
    return _feed(using).positions()


def news(user_id: str, since: Mapping[str, At], streams: Sequence[str], using: str | None = None) -> list[str]:
    """Those of the streams of which something may concern the user since; a stream without a position always."""
    return _feed(using).concerns(user_id, since, streams)


def wait(user_id: str, since: Mapping[str, At], timeout_seconds: float, using: str | None = None) -> bool:
    """Block until something may concern the user that these positions do not cover; False when the time is over.

    Wakes at once after a commit of this process, and within milliseconds of one in another. Raises ``TooManyWaiters``.
    """
    feed, end = _feed(using), time.monotonic() + timeout_seconds
    event = threading.Event()
    waiter = feed.wait(user_id, since, event)
    if waiter is None:
        return True
    try:
        return event.wait(max(0.0, end - time.monotonic()))
    finally:
        feed.leave(waiter)


async def await_news(user_id: str, since: Mapping[str, At], timeout_seconds: float, using: str | None = None) -> bool:
    """``wait`` for async code: no thread is kept while it waits."""
    end = time.monotonic() + timeout_seconds
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    feed = await asyncio.to_thread(_feed, using)
    waiter = await asyncio.to_thread(feed.wait, user_id, since, future)
    if waiter is None:
        return True
    try:
        async with asyncio.timeout(max(0.0, end - time.monotonic())):
            await future
    except TimeoutError:
        return not feed.leave(waiter)  # woken at the last moment
    finally:
        feed.leave(waiter)
    return True


def figures(using: str | None = None) -> HotFigures | None:
    """How much this process remembers, who waits and what happened; None when nothing was asked yet."""
    feed = _feeds.get(using or stream_settings().database)
    return None if feed is None else feed.figures()


def waiting(using: str | None = None) -> int:
    """How many callers wait in this process."""
    feed = _feeds.get(using or stream_settings().database)
    return 0 if feed is None else feed.waiting()


# --- one feed per database ------------------------------------------------------------------------------------------

_feeds: dict[str, HotFeed] = {}
_guard = threading.Lock()


def _feed(using: str | None) -> HotFeed:
    alias = using or stream_settings().database
    feed = _feeds.get(alias)
    return feed if feed is not None else _begin(alias)


def _begin(alias: str) -> HotFeed:
    with _guard:
        found = _feeds.get(alias)
        if found is not None:
            return found
        feed = HotFeed(alias)
        if not feed.start():
            feed.stop()
            raise driver.OperationalError(
                f"Database {alias!r} does not answer, so nothing is known of what changed. Start it, and ask again."
            )
        writer.when_moved.add(_own_moved)  # first: whoever finds the feed waits for commits of this process, too
        _feeds[alias] = feed
        return feed


def forget_feeds() -> None:
    """End all feeds of this process; the next question begins anew."""
    with _guard:
        feeds = list(_feeds.values())
        _feeds.clear()
    for feed in feeds:
        feed.stop()


def _own_moved(using: str) -> None:
    feed = _feeds.get(using)
    if feed is not None:
        feed.own_moved()


def _before_advance(using: str, pokes: Sequence[Poke]) -> None:
    feed = _feeds.get(using)
    if feed is None or not feed.is_hearing:  # then it says nothing wrong; its own thread begins anew
        return
    try:
        feed.heard(pokes)
    except driver.DatabaseError as error:  # it has forgotten everything, so it says nothing wrong
        log.warning("hot.not_hearing", error=str(error).strip())


def _after_fork() -> None:
    """A child hears nothing of its parent's connection."""
    global _guard  # noqa: PLW0603
    _feeds.clear()
    _guard = threading.Lock()


process.before_leaving.append(forget_feeds)
cache_feed.observers.append(_before_advance)
os.register_at_fork(after_in_child=_after_fork)
