"""Answers from memory whether a user's rooms or memberships, or any rooms, changed since a position.

    found = notifier.look("@alice:x", since)
    if found.nothing:            # no query was sent
        return nothing new, token found.now

The question "changed since position p?" is answered *no* or *maybe*, and a *no* is never wrong. Rows of the streams are
added to the memory of a process before a position that covers them is shown. So a *no* is right even with several
writer processes. An answer is valid up to its own ``now`` and not beyond, so a client continues from the token ``now``.

``wait`` and ``await_news`` let a caller sleep until something may concern a user. After a fork the child process starts
with an empty memory. The first call in a process raises ``OperationalError`` if the database does not answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Mapping, Sequence

from events.arguments import can_be_stored
from events.notifier.cache import NotifierFigures, UserChanges
from events.notifier.feed import NotifierFeed
from events.notifier.routing import Target
from events.notifier.stream_cache import At
from streams.core.tokens import VectorToken
from streams.reading.watcher import Subscriptions
from streams.runtime.leaving import before_leaving

__all__ = [
    "At",
    "UserChanges",
    "await_news",
    "figures",
    "look",
    "may_have_changed",
    "membership_changed_since",
    "movers_since",
    "news",
    "now",
    "positions",
    "rooms_changed_since",
    "rooms_of",
    "stop_feeds",
    "wait",
    "waiting",
]

_NO_USER = ""
"""Used in place of a user ID that cannot be stored. Such a user is in no room."""


def look(user_id: str, since: VectorToken, using: str | None = None) -> UserChanges:
    """Returns the possible changes for a user since a position of ``events``.

    The answer comes from memory. The first call for a user reads their rooms on a connection of the notifier's own, so
    it never sees uncommitted changes of the caller's transaction.
    """
    return _feeds.obtain(using).ask(user_id if can_be_stored(user_id) else _NO_USER, since)


def may_have_changed(user_id: str, since: VectorToken, using: str | None = None) -> frozenset[str] | None:
    """Returns the joined rooms that may have changed since a position of ``events``.

    The set is empty if nothing is new for the user, memberships included. None means that anything may have changed,
    memberships included.
    """
    found = look(user_id, since, using)
    return None if found.memberships_changed else found.changed


def rooms_of(user_id: str, using: str | None = None) -> frozenset[str]:
    return look(user_id, VectorToken(0), using).rooms


def rooms_changed_since(rooms: Collection[str], since: VectorToken, using: str | None = None) -> frozenset[str] | None:
    """Returns those of ``rooms`` that may have changed since a position of ``events``, or None if all may have.

    The answer is complete up to the position that ``now()`` returned before the call.
    """
    feed = _feeds.obtain(using)
    changed = feed.changed("events", Target.ROOM, since)
    return None if changed is None else changed & frozenset(rooms)


def membership_changed_since(user_id: str, since: VectorToken, using: str | None = None) -> bool:
    return look(user_id, since, using).memberships_changed


def movers_since(since: VectorToken, using: str | None = None) -> frozenset[str] | None:
    """Returns the users whose membership of any room may have changed since a position of ``events``, or None if any may."""
    feed = _feeds.obtain(using)
    return feed.changed("events", Target.USER, since)


def now(stream: str = "events", using: str | None = None) -> VectorToken | None:
    """Returns the token up to which the memory of a stream is complete, or None if nothing of the stream is remembered."""
    at = positions(using).get(stream)
    return None if at is None else at.token


def positions(using: str | None = None) -> Mapping[str, At]:
    """Returns for each stream the position up to which its memory is complete. Empty while nothing is remembered."""
    return _feeds.obtain(using).positions()


def news(user_id: str, since: Mapping[str, At], streams: Sequence[str], using: str | None = None) -> list[str]:
    """Returns the streams that may have news for the user since the positions ``since``.

    A stream that has no position in ``since`` is always included.
    """
    return _feeds.obtain(using).concerns(user_id, since, streams)


def wait(user_id: str, since: Mapping[str, At], timeout_seconds: float, using: str | None = None) -> bool:
    """Blocks until there may be news for the user after the positions ``since``.

    Returns false after the timeout.

    Wakes within milliseconds after a commit. Raises ``TooManyWaiters``.
    """
    feed, end = _feeds.obtain(using), time.monotonic() + timeout_seconds
    event = threading.Event()
    waiter = feed.wait(user_id, since, event)
    if waiter is None:
        return True
    try:
        return event.wait(max(0.0, end - time.monotonic()))
    finally:
        feed.leave(waiter)


async def await_news(user_id: str, since: Mapping[str, At], timeout_seconds: float, using: str | None = None) -> bool:
    """Does the same as ``wait``, for async code. No thread is occupied while the caller waits."""
    end = time.monotonic() + timeout_seconds
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    feed = await asyncio.to_thread(_feeds.obtain, using)
    waiter = await asyncio.to_thread(feed.wait, user_id, since, future)
    if waiter is None:
        return True
    try:
        async with asyncio.timeout(max(0.0, end - time.monotonic())):
            await future
    except TimeoutError:
        return not feed.leave(waiter)  # true if it was woken at the last moment
    finally:
        feed.leave(waiter)
    return True


def figures(using: str | None = None) -> NotifierFigures | None:
    """Returns this process's figures for metrics, or None before the first question."""
    feed = _feeds.get(using)
    return None if feed is None else feed.figures()


def waiting(using: str | None = None) -> int:
    feed = _feeds.get(using)
    return 0 if feed is None else feed.waiting()


# --- one feed per database ------------------------------------------------------------------------------------------


_feeds = Subscriptions(NotifierFeed)


def stop_feeds() -> None:
    """Ends all feeds of this process. The next query starts a new feed."""
    _feeds.stop()


before_leaving.append(stop_feeds)
