"""Waits until this process sees a position: ``Stream.wait_for`` and, for async code, ``Stream.await_for``.

A write in another process returns a token (such as 815). A caller that reads here and must see that write first waits
until this process has seen the token. Notifications wake the callers that wait, so there is no polling. Positions are stored
after commits, so facts up to the awaited position are visible to every query that begins after the wait.

Each process has one ``PositionView`` for each database alias, from the first wait on. The process's watcher passes
positions to the ``PositionView`` (``streams.reading.watcher``).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db import connections

from streams.conf import stream_settings
from streams.core.positions import active_and_retired, linear_position
from streams.core.tokens import VectorToken
from streams.errors import WaitTimedOut
from streams.reading.given_token import Token, given_token, text_token
from streams.reading.rows import StoredPosition
from streams.reading.watcher import Found, Rank, Subscriber, Subscriptions
from streams.waiting.waiters import TokenWaiter, Waiters, missing
from streams.waiting.waking import wake_all

if TYPE_CHECKING:
    from streams.core.bound import BoundStream

__all__ = [
    "DEFAULT_SECONDS",
    "PositionView",
    "Token",
    "await_for",
    "forget_views",
    "timed_out",
    "views",
    "wait_for",
    "waiting",
]

DEFAULT_SECONDS = 5.0

#: Stream name -> number of waits that timed out in this process, for metrics.
timed_out: Counter[str] = Counter()


def wait_for(
    stream: BoundStream, token: Token, timeout_seconds: float = DEFAULT_SECONDS, using: str | None = None
) -> VectorToken:
    """Blocks until this process sees everything that the token covers.

    Returns the vector that the stream has when the wait ends.

    Raises ``WaitTimedOut`` (also a ``TimeoutError``), ``TokenError`` or ``EpochChanged``. Must not be called within the
    transaction that appends the awaited facts, because these facts are complete only when this transaction has ended.
    """
    wanted = _read(stream, token, using)
    view = views.obtain(using)
    event = threading.Event()
    waiter = view.wait(stream.name, wanted, event)
    # ``is_there`` checks once more: the waiter may have been woken after the timeout and before its removal.
    if waiter is None or event.wait(max(0.0, timeout_seconds)) or view.is_there(waiter):
        return view.seen(stream.name).token()
    raise view.too_late(waiter, timeout_seconds)


async def await_for(
    stream: BoundStream, token: Token, timeout_seconds: float = DEFAULT_SECONDS, using: str | None = None
) -> VectorToken:
    """Waits as ``wait_for`` does, in async code. The wait occupies no thread, so thousands of callers may wait at once."""
    found = views.get(using)
    if found is None or isinstance(token, str):
        view, wanted = await asyncio.to_thread(_view_and_token, stream, token, using)
    else:
        view, wanted = found, _read(stream, token, using)
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    waiter = view.wait(stream.name, wanted, future)
    if waiter is None:
        return view.seen(stream.name).token()
    try:
        async with asyncio.timeout(max(0.0, timeout_seconds)):
            await future
    except TimeoutError:
        if not view.is_there(waiter):
            raise view.too_late(waiter, timeout_seconds) from None
    except asyncio.CancelledError:
        view.give_up(waiter)
        raise
    return view.seen(stream.name).token()


def waiting(using: str | None = None) -> int:
    view = views.get(using)
    return 0 if view is None else view.waiting()


def _view_and_token(stream: BoundStream, token: Token, using: str | None) -> tuple[PositionView, VectorToken]:
    try:
        return views.obtain(using), _read(stream, token, using)
    finally:
        connections.close_all()  # of a thread of the executor


def _read(stream: BoundStream, token: Token, using: str | None) -> VectorToken:
    found = given_token(stream.name, token)
    if found is not None:
        return found
    text = str(token)
    if text.isdigit():
        return VectorToken.parse(text, {})
    with connections[using or stream_settings().database].cursor() as cursor:
        return text_token(cursor, stream.name, text)


class _Seen:
    """The positions of one stream as this process sees them."""

    def __init__(self, stored: Mapping[str, StoredPosition]) -> None:
        self.linear = linear_position(stored.values(), 0)
        self.positions = active_and_retired(stored)[0]

    def position_of(self, writer: str) -> int:
        """Returns the position of a writer, which is not below the linear position."""
        return max(self.positions.get(writer, 0), self.linear)

    def at(self, writer: str | None) -> int:
        return self.linear if writer is None else self.position_of(writer)

    def token(self) -> VectorToken:
        return VectorToken.of(self.linear, self.positions)


_NOTHING = _Seen({})


class PositionView(Subscriber):
    """The positions of one database that this process sees, and the callers that wait for higher positions.

    After ``stop``, callers that still wait are not woken any more, and time out.
    """

    rank = Rank.WAITERS

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self._waiters: Waiters[TokenWaiter, tuple[str, str | None]] = Waiters(self._next_place)
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}
        #: How often the database was found restored.
        self.restores = 0

    # --- waiters --------------------------------------------------------------------------------------------------

    def wait(self, stream: str, token: VectorToken, wake: Any) -> TokenWaiter | None:
        """Adds a waiter for the token. Returns None if this process already sees everything that the token covers."""
        with self._lock:
            waiter = TokenWaiter(stream, token, wake)
            return waiter if self._waiters.add(waiter) else None

    def _next_place(self, waiter: TokenWaiter) -> tuple[tuple[str, str | None], int] | None:
        """Returns the next position for which the waiter must wait, as ``((stream, writer), position)``.

        The writer is None for the linear position. Returns None if the waiter need not wait any more.
        """
        found = missing(self._seen.get(waiter.stream, _NOTHING), waiter.token)
        return None if found is None else ((waiter.stream, found[0]), found[1])

    def is_there(self, waiter: TokenWaiter) -> bool:
        """Removes the waiter after its timeout. Returns true if the awaited positions have been reached after all."""
        with self._lock:
            return not self._waiters.leave(waiter) or self._next_place(waiter) is None

    def give_up(self, waiter: TokenWaiter) -> None:
        with self._lock:
            self._waiters.leave(waiter)

    def waiting(self) -> int:
        with self._lock:
            return len(self._waiters)

    def seen(self, stream: str) -> _Seen:
        with self._lock:
            return self._seen.get(stream, _NOTHING)

    def too_late(self, waiter: TokenWaiter, seconds: float) -> WaitTimedOut:
        """Counts a timeout and returns the error to raise.

        The error names the stream, the writer that is behind, the wanted position and the position that was seen.
        """
        timed_out[waiter.stream] += 1
        seen, token = self.seen(waiter.stream), waiter.token
        if seen.linear < token.base:
            positions = seen.positions
            slowest = min(positions, key=positions.__getitem__, default="")
            where = f"the linear position is {seen.linear}, wanted {token.base}"
            where += f"; the slowest writer is {slowest!r} at {positions[slowest]}" if slowest else ""
        else:
            found = ((w, at) for w, at in token.entries.items() if seen.position_of(w) < at)
            writer, at = next(found, ("", 0))
            where = f"writer {writer!r} is at {seen.position_of(writer)}, wanted {at}"
        return WaitTimedOut(
            f"Stream {waiter.stream}: not there after {seconds:g} s: {where}. manage.py streams shows what holds it back; "
            f"wait longer, or go on with what there is."
        )

    # --- positions ------------------------------------------------------------------------------------------------

    def restored(self) -> None:
        # A restored database may lack facts that were seen.
        with self._lock:
            self._seen = {}
            self.restores += 1

    def publish(self, found: Found) -> None:
        """Stores the positions, and wakes the callers that waited for them."""
        with self._lock:
            self._seen.update((stream, _Seen(stored)) for stream, stored in found.items())
            reached: list[TokenWaiter] = []
            for stream, writer in self._waiters.keys:
                due = self._waiters.pop((stream, writer), self._seen.get(stream, _NOTHING).at(writer))
                reached += [waiter for waiter in due if not self._waiters.add(waiter)]
        wake_all(reached)


views = Subscriptions(PositionView)


def forget_views() -> None:
    """Stops the `PositionView` of each database. The next use starts a new `PositionView`.

    For tests, which empty the tables between runs.
    """
    views.stop()
