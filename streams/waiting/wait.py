"""Waits until this process sees a position: ``Stream.wait_for`` and, for async code, ``Stream.await_for``.

A write in another process returns a token (such as 815). A caller that reads here and must see that write first waits
until this process has seen the token. Notifications wake the callers that wait, so there is no polling. In a process
that writes the stream itself, the process's own commits wake these callers at once. Positions are announced after
commits, so facts up to the awaited position are visible to every query that begins after the wait.

Each process has one ``PositionView`` for each database alias, from the first wait on. The process's watcher passes
positions to the ``PositionView`` (``streams.reading.watcher``). Like a reader, the ``PositionView`` has a tracker for
each stream (``streams.core.tracker``).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import connections

from streams.conf import stream_settings
from streams.core.positions import active_and_retired, linear_position
from streams.core.tokens import VectorToken
from streams.core.tracker import PositionTracker, TrackerState
from streams.errors import WaitTimedOut
from streams.reading.given_token import Token, given_token, text_token
from streams.reading.watcher import Found, Rank, Subscriber, Subscriptions
from streams.waiting.waiters import TokenWaiter, Waiters, missing
from streams.waiting.waking import wake_all
from streams.writing import process

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
#: Stands for a writer in the place of a waiter for the lowest announced position.
_ANNOUNCED = ""

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
    """Returns the number of callers in this process that now wait for positions of one database."""
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


@dataclass(frozen=True, slots=True)
class _Seen:
    """The positions of one stream as this process sees them.

    ``heard`` is the tracker to which announced positions are applied. ``own`` is the tracker with which this process
    writes the stream, or None.
    """

    heard: PositionTracker
    own: PositionTracker | None
    own_name: str

    @property
    def linear(self) -> int:
        return max(self.heard.linear, self.own.linear if self.own is not None else 0)

    @property
    def lowest_announced(self) -> int:
        """The linear position that the table shows: the lowest of the active writers' positions.

        ``linear`` may be above this position. Example: B is at 10, and A announces 11. This process knows that 11 is
        complete, so ``linear`` is 11. But ``Stream.read`` uses the positions in the table, and returns fact 11 only
        when B has announced 11, too.
        """
        return min(self.heard.raw_positions.values(), default=self.heard.linear)

    def position_of(self, writer: str) -> int:
        at = max(self.heard.position_of(writer), self.linear)
        return max(at, self.own.own_maximum) if self.own is not None and writer == self.own_name else at

    def at(self, writer: str | None) -> int:
        """Returns the position of this writer, or the linear position if ``writer`` is None.

        For ``_ANNOUNCED`` returns the lowest announced position.
        """
        if writer == _ANNOUNCED:
            return self.lowest_announced
        return self.linear if writer is None else self.position_of(writer)

    def token(self) -> VectorToken:
        """Returns the position as a token: the linear position, and an entry for each writer that is ahead of it."""
        names = {*self.heard.raw_positions, *([self.own_name] if self.own is not None else [])}
        return VectorToken.of(self.linear, {writer: self.position_of(writer) for writer in names})


class PositionView(Subscriber):
    """The positions of one database that this process sees, and the callers that wait for higher positions.

    After ``stop``, callers that still wait are not woken any more, and time out.
    """

    rank = Rank.WAITERS

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self._waiters: Waiters[TokenWaiter, tuple[str, str | None]] = Waiters(self._next_place)
        self._lock = threading.Lock()
        self._trackers: dict[str, PositionTracker] = {}
        self._generations: dict[str, int] = {}
        #: How often the database was found restored.
        self.restores = 0

    # --- waiters --------------------------------------------------------------------------------------------------

    def wait(self, stream: str, token: VectorToken, wake: Any, *, announced: bool = False) -> TokenWaiter | None:
        """Adds a waiter for the token. Returns None if this process already sees everything that the token covers.

        ``announced`` is explained in ``TokenWaiter``.
        """
        with self._lock:
            waiter = TokenWaiter(stream, token, wake, announced)
            return waiter if self._waiters.add(waiter) else None

    def _next_place(self, waiter: TokenWaiter) -> tuple[tuple[str, str | None], int] | None:
        """Returns the next position for which the waiter must wait, as ``((stream, writer), position)``.

        The writer is None for the linear position, and empty for the lowest announced position. Returns None if the
        waiter need not wait any more.
        """
        seen = self._seen(waiter.stream)
        if waiter.announced:
            reached = seen.lowest_announced >= waiter.token.base
            return None if reached else ((waiter.stream, _ANNOUNCED), waiter.token.base)
        found = missing(seen, waiter.token)
        return None if found is None else ((waiter.stream, found[0]), found[1])

    def is_there(self, waiter: TokenWaiter) -> bool:
        """Removes the waiter after its timeout. Returns true if the awaited positions have been reached after all."""
        with self._lock:
            return not self._waiters.leave(waiter) or self._next_place(waiter) is None

    def give_up(self, waiter: TokenWaiter) -> None:
        """Removes the waiter, because its caller was cancelled."""
        with self._lock:
            self._waiters.leave(waiter)

    def waiting(self) -> int:
        """Returns the number of waiters."""
        with self._lock:
            return len(self._waiters)

    def seen(self, stream: str) -> _Seen:
        """Returns the positions of the stream as this process sees them now."""
        with self._lock:
            return self._seen(stream)

    def too_late(self, waiter: TokenWaiter, seconds: float) -> WaitTimedOut:
        """Counts a timeout and returns the error to raise.

        The error names the stream, the writer that is behind, the wanted position and the position that was seen.
        """
        timed_out[waiter.stream] += 1
        seen, token = self.seen(waiter.stream), waiter.token
        if seen.linear < token.base:
            positions = seen.heard.raw_positions
            slowest = min(positions, key=positions.__getitem__, default="")
            where = f"the linear position is {seen.linear}, wanted {token.base}"
            where += f"; the slowest writer is {slowest!r} at {positions[slowest]}" if slowest else ""
            pending = seen.own.pending if seen.own is not None else []
            where += f"; a transaction of this process has {pending[0]} open" if pending else ""
        else:
            found = ((w, at) for w, at in token.entries.items() if seen.position_of(w) < at)
            writer, at = next(found, ("", 0))
            where = f"writer {writer!r} is at {seen.position_of(writer)}, wanted {at}"
        return WaitTimedOut(
            f"Stream {waiter.stream}: not there after {seconds:g} s: {where}. manage.py streams shows what holds it back; "
            f"wait longer, or go on with what there is."
        )

    def _seen(self, stream: str) -> _Seen:
        heard = self._trackers.get(stream)
        if heard is None:
            heard = self._trackers[stream] = PositionTracker(TrackerState(0, {}))
        writer = process.current_writer(self.using)
        return _Seen(heard, writer.trackers.get(stream) if writer.has_lock else None, writer.name)

    # --- positions ------------------------------------------------------------------------------------------------

    def own_moved(self) -> None:
        """Wakes the callers whose positions this process has reached by completing facts of its own."""
        self._wake()

    def restored(self) -> None:
        """Discards all positions. A restored database may lack facts that were seen."""
        with self._lock:
            self._trackers.clear()
            self._generations.clear()
            self.restores += 1

    def shown(self, found: Found) -> None:
        """Stores the positions, and wakes the callers that waited for them."""
        with self._lock:
            for name, stored in found.items():
                active, retired = active_and_retired(stored)
                generation = max((at.generation for at in stored.values()), default=0)
                if self._generations.get(name) != generation:  # read for the first time, or started again at 0
                    self._generations[name] = generation
                    self._trackers[name] = PositionTracker(TrackerState(linear_position(stored.values(), 0), active))
                self._trackers[name].learn(active, retired)
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            reached: list[TokenWaiter] = []
            for stream, writer in self._waiters.keys:
                seen = self._seen(stream)
                at = seen.at(writer)
                came = self._waiters.take((stream, writer), at)
                reached += [waiter for waiter in came if not self._waiters.add(waiter)]
        wake_all(reached)


views = Subscriptions(PositionView)


def forget_views() -> None:
    """Stops the `PositionView` of each database. The next use starts a new `PositionView`.

    For tests, which empty the tables between runs.
    """
    views.stop()
