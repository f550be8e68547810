"""Listens to a stream: yields each fact once it is complete, in order, for as long as the caller likes.

A listener keeps a token and at most one page of facts, so its memory is bounded however slow its caller is. Between two
facts the listener waits as ``streams.waiting.wait`` does: woken by the process's one watcher of positions, without
polling. An asynchronous listener occupies no thread while it waits. Listeners of one event loop that have the same
token share one waiter and one read, and get the same instances.

After a lost connection the listener reads again from its token, so no fact is missed or given twice. While the database
is away the listener still yields None after each ``beat``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.db import connections

from streams.core.tokens import VectorToken
from streams.db import driver, testcase
from streams.db.consistent_read import limited_waits
from streams.errors import EpochChanged, InTransaction, ResyncNeeded
from streams.reading.given_token import Token, base_of
from streams.runtime.logs import Condition, get_logger
from streams.waiting import wait
from streams.waiting.pages import Page, end_token, page_after
from streams.waiting.waking import resolve, wake_all

if TYPE_CHECKING:
    from streams.core.bound import BoundStream

log = get_logger(__name__)
PAGE_FACTS = 200
#: A listener that was not woken for this long reads all the same.
LONGEST_SILENCE_SECONDS = 60.0
RETRY_SECONDS = 0.2
#: Seconds after which a listener in a test's own transaction reads again, because nothing is announced there.
TEST_GAP_SECONDS = 0.01

#: So many listeners get a page in one turn of the event loop.
AT_ONCE = 16

#: A page, and whether it was read in the transaction of a ``TestCase``.
_Read = tuple[Page, bool]
#: Event loop -> (stream, alias, token) -> the read of the page after the token that is under way.
_reads: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str, str], asyncio.Task[_Read]]] = (
    WeakKeyDictionary()
)
#: Event loop -> (stream, alias, token) -> its listeners that wait after this token.
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str, str], _Place]] = WeakKeyDictionary()
#: What a listener gets from its place that is to read for all.
_READ: Any = object()
#: (stream, alias) -> the last token after which a read found nothing, the view at that time, and how often it was restored.
_ends: dict[tuple[str, str], tuple[str, wait.PositionView, int]] = {}


def was_end(stream: BoundStream, token: str, using: str) -> bool:
    """Returns true if it is known, without a read, that there was nothing after the token. What came since is waited for."""
    known, view = _ends.get((stream.name, using)), wait.views.get(using)
    return view is not None and known == (token, view, view.restores)


def read_after(stream: BoundStream, after: Token | None, using: str, *, asks: bool = True) -> _Read:
    """Reads a page, and remembers its end for ``was_end``. Unless it ``asks``, the end is what this process knows."""
    view, in_test = wait.views.get(using), testcase.is_in_test(connections[using])
    restores = 0 if view is None else view.restores  # before the read: else a restore after it would not be noticed
    seen = 0 if asks or in_test or view is None else view.seen(stream.name).linear
    page = page_after(stream, after, PAGE_FACTS, using, seen=seen)
    if in_test:
        _ends.pop((stream.name, using), None)
    elif page.at_end and view is not None:
        _ends[stream.name, using] = (page.next, view, restores)
    return page, in_test


async def shared_read(
    stream: BoundStream, after: str, using: str, read: Callable[[], Coroutine[Any, Any, _Read]]
) -> _Read:
    """Awaits ``read()``, or a read after the same token in this event loop that is under way."""
    reads = _reads.setdefault(asyncio.get_running_loop(), {})
    key = (stream.name, using, after)
    task = reads.get(key)
    # Not one that is done, though it stands here until its callback runs. Its page may be older than the position that woke the
    # caller, who would ask again at once, get the same page, and so on: nothing else of this event loop would ever run.
    if task is None or task.done():
        task = reads[key] = asyncio.ensure_future(read())
        task.add_done_callback(lambda done: reads.pop(key) if reads.get(key) is done else None)
    # Shielded, because the end of one listener must not end the read of the others.
    return await asyncio.shield(task)


class _Place:
    """The asynchronous listeners of an event loop that wait after the same token.

    They have one waiter. When it is woken, the first of them reads, and gives all others its page.
    """

    def __init__(self, view: wait.PositionView, key: tuple[str, str, str]) -> None:
        self._key = key
        self._view = view
        self._futures: dict[asyncio.Future[_Read | None], None] = {}
        self._leader: asyncio.Future[_Read | None] | None = None
        woken = asyncio.get_running_loop().create_future()
        woken.add_done_callback(lambda _: self._choose())
        self._waiter = view.wait(key[0], VectorToken(base_of(key[2]) + 1), woken)
        if self._waiter is None:
            woken.set_result(None)

    @staticmethod
    def of(view: wait.PositionView, key: tuple[str, str, str]) -> _Place:
        places = _places.setdefault(asyncio.get_running_loop(), {})
        if (found := places.get(key)) is None or found._view is not view:
            found = places[key] = _Place(view, key)
        return found

    def join(self) -> asyncio.Future[_Read | None]:
        """Adds a listener. Its future gets a page, or an error, or ``_READ`` if the listener is to read for all."""
        future = asyncio.get_running_loop().create_future()
        self._futures[future] = None
        return future

    def leave(self, future: asyncio.Future[_Read | None]) -> None:
        del self._futures[future]
        if future is self._leader:  # cancelled, or failed, before it gave its page
            self._choose()
        elif not self._futures:
            self._forget()

    def give(self, read: _Read | None, error: Exception | None = None) -> None:
        """Gives the page that the leader has read, or its error, to all others."""
        self._leader = None
        self._give([*self._futures], read, error)

    def _give(self, futures: list[asyncio.Future[_Read | None]], read: _Read | None, error: Exception | None) -> None:
        for future in futures[:AT_ONCE]:
            if not future.done():
                future.set_result(read) if error is None else future.set_exception(error)
        if rest := futures[AT_ONCE:]:
            # In between, the event loop sends. Else what the first ones send would wait for what the last ones are to send.
            asyncio.get_running_loop().call_soon(self._give, rest, read, error)

    def _choose(self) -> None:
        self._forget()  # who comes from now on waits for a newer position
        self._leader = next((future for future in self._futures if not future.done()), None)
        if self._leader is not None:
            self._leader.set_result(_READ)

    def _forget(self) -> None:
        places = _places[asyncio.get_running_loop()]
        if places.get(self._key) is self:
            del places[self._key]
        if self._waiter is not None:
            self._view.give_up(self._waiter)


class Listener(Iterator[Any], AsyncIterator[Any]):
    """The facts of a stream after a token, as they become complete.

    Use it either with ``for`` or with ``async for``, but not with both.

    Yields None after ``beat`` seconds without a fact. ``close`` ends the loop. ``close`` may be called from any thread,
    or in the listener's event loop. A listener that waits for its caller holds no connection and no thread.
    """

    def __init__(self, stream: BoundStream, after: Token | None, beat: float | None, using: str) -> None:
        if beat is not None and not (isinstance(beat, (int, float)) and beat > 0):
            raise ValueError(
                f"Stream {stream.name}: listen(beat={beat!r}) is no time; give seconds, or None for no beat."
            )
        self.wake: threading.Event | asyncio.Future[None] | None = None
        self._stream = stream
        self._after = after
        self._beat = beat
        self._using = using
        self._facts: deque[Any] = deque()
        self._last = ""
        self._closed = self._has_read = self._in_test = False
        self._must_read = True
        self._read_at = 0.0
        self._seen_view: tuple[object, int] = (None, 0)
        self._away = Condition(log, "listener.database_lost", "listener.database_back", stream=stream.name)

    @property
    def is_within_fact(self) -> bool:
        return bool(self._facts) and self._facts[0].token == self._last

    @property
    def has_facts(self) -> bool:
        """True if the next fact was read already, so that it is there without waiting."""
        return bool(self._facts)

    @property
    def is_at_end(self) -> bool:
        """True if all facts up to the position that this process knows were given."""
        return not self._facts and not self._must_read

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Sets the place after which facts are yielded: the present end of the stream, unless a token was given."""
        if self._after is None:
            self._after = end_token(self._stream, self._using)

    def close(self) -> None:
        """Ends the loop: ``for`` stops, also if it waits at the moment."""
        self._closed = True
        self._facts.clear()
        if self.wake is not None:
            wake_all([self])

    async def aclose(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def begin_at_known_end(self) -> None:
        """Leaves out the first read if the token is known as the end."""
        if was_end(self._stream, str(self._after), self._using):
            self._must_read, self._has_read = False, True

    # --- for ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        due = self._due()
        while not self._closed:
            if self._facts:
                return self._next_fact()
            if self._must_read and self._store_page(self._read_or_none()):
                continue
            if due is not None and time.monotonic() >= due:
                return None
            if self._in_test:
                self._check_anything_can_come()
                return None
            self._wait(_left(due))
        raise StopIteration

    def _read_or_none(self) -> _Read | None:
        try:
            read = self._read()
        except driver.database_lost as error:
            self._lost(error)
            return None
        self._read_succeeded()
        return read

    def _read(self) -> _Read:
        connection = connections[self._using]
        if testcase.is_in_callers_block(connection):
            raise InTransaction(
                f"Stream {self._stream.name}: listen() was called inside of an open transaction, which would stay open "
                f"for as long as it listens. Leave the atomic block first; read() may be called inside."
            )
        try:
            # All browsers of a process read in one thread, where those of other streams would wait for a locked table, too.
            with limited_waits(self._using):
                self.start()
                return read_after(self._stream, self._after, self._using, asks=False)
        except driver.database_lost:
            if not connection.in_atomic_block:
                connection.close()
            raise

    def _store_page(self, read: _Read | None) -> bool:
        if read is None:
            return False
        page, self._in_test = read
        self._after = page.next
        self._facts.extend(page.facts)
        self._must_read = not page.at_end or self._in_test
        return bool(page.facts) or not page.at_end

    def _wait(self, seconds: float) -> None:
        # The event is set as ``wake`` before ``_closed`` is read. In the other order, this thread finds the listener open, B
        # closes it and has no event to set, and this thread waits until its time is up.
        event = self.wake = threading.Event()
        try:
            if self._closed:
                return
            if self._away.is_on:
                event.wait(min(seconds, RETRY_SECONDS))
                return
            view = wait.views.obtain(self._using)
            waiter = view.wait(self._stream.name, self._next_position(), event)
            if waiter is not None:
                event.wait(seconds)
            self._after_wait(view, is_silent=waiter is not None and not view.is_there(waiter))
        except driver.database_lost as error:  # the watcher cannot start
            self._lost(error)
        finally:
            self.wake = None

    # --- async for ------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        due = self._due()
        while not self._closed:
            if self._facts:
                return self._next_fact()
            if self._must_read and self._store_page(await self._aread_or_none(self._shared_read())):
                continue
            if due is not None and time.monotonic() >= due:
                return None
            self._store_page(await self._aread_or_none(self._await(_left(due))))
        raise StopAsyncIteration

    async def _aread_or_none(self, reading: Awaitable[_Read | None]) -> _Read | None:
        try:
            read = await reading
        except driver.database_lost as error:
            self._lost(error)
            return None
        if read is not None:
            self._read_succeeded()
        return read

    async def _shared_read(self) -> _Read:
        if not isinstance(self._after, str):
            return await self._read_in_thread()
        return await shared_read(self._stream, self._after, self._using, self._read_in_thread)

    async def _read_in_thread(self) -> _Read:
        return await sync_to_async(self._read, thread_sensitive=True)()

    async def _await(self, seconds: float) -> _Read | None:
        """Returns the next page, or None after these seconds, or if the listener is closed."""
        if self._in_test or self._away.is_on:
            place = None
            future = asyncio.get_running_loop().create_future()
            seconds = min(seconds, TEST_GAP_SECONDS if self._in_test else RETRY_SECONDS)
        else:
            started = wait.views.get(self._using)
            view = started if started is not None else await asyncio.to_thread(_start_view, self._using)
            place = _Place.of(view, (self._stream.name, self._using, str(self._after)))
            future = place.join()
        self.wake = future
        timer = future.get_loop().call_later(seconds, resolve, [future])
        try:
            read = None if self._closed else await future
            if place is not None and read is _READ:
                read = await self._read_for(place)
            elif place is not None and read is None:
                self._after_wait(view, is_silent=True)
            return read
        finally:
            timer.cancel()
            self.wake = None
            if place is not None:
                place.leave(future)

    async def _read_for(self, place: _Place) -> _Read:
        try:
            read = await self._shared_read()
        except (EpochChanged, ResyncNeeded, *driver.database_lost) as error:
            # Another error, such as of a request whose thread has ended, is of this listener alone: the next one reads.
            place.give(None, error)
            raise
        place.give(read)
        return read

    # --- both -----------------------------------------------------------------------------------------------------

    def _next_fact(self) -> Any:
        fact = self._facts.popleft()
        self._last = fact.token
        return fact

    def _due(self) -> float | None:
        return None if self._beat is None else time.monotonic() + self._beat

    def _next_position(self) -> VectorToken:
        return VectorToken(base_of(str(self._after)) + 1)

    def _after_wait(self, view: wait.PositionView, *, is_silent: bool) -> None:
        """Decides after a wait whether the next page is to be read, and then sets ``_must_read``."""
        seen, before = (view, view.restores), self._seen_view
        self._seen_view = seen
        if not is_silent or seen != before or time.monotonic() - self._read_at > LONGEST_SILENCE_SECONDS:
            self._must_read = True

    def _check_anything_can_come(self) -> None:
        if self._beat is None:
            raise InTransaction(
                f"Stream {self._stream.name}: listen() has given all facts of this TestCase's transaction, and would "
                f"wait for ever: nothing else can be appended in it. Give it a beat, or use TransactionTestCase."
            )

    def _read_succeeded(self) -> None:
        self._has_read, self._read_at = True, time.monotonic()
        self._away.ends()

    def _lost(self, error: BaseException) -> None:
        if not self._has_read and not isinstance(error.__cause__, driver.lock_timed_out):
            raise error
        self._must_read = True
        self._away.begins(driver.explain(error))


def _left(due: float | None) -> float:
    return LONGEST_SILENCE_SECONDS if due is None else max(0.0, due - time.monotonic())


def _start_view(using: str) -> wait.PositionView:
    try:
        return wait.views.obtain(using)
    finally:
        connections.close_all()  # of a thread of the executor
