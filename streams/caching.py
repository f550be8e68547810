"""Cached functions. An outdated value is dropped in every process before that process shows the position of the change.

    @cached("get_order_status")
    def get_order_status(order_id: str) -> str: ...

    get_order_status("4711")                 # computed once, then kept
    get_order_status.invalidate("4711")      # appends a fact to the stream ``caches``, in the caller's transaction
    get_order_status.invalidate_all()
    get_order_status.prefill(("4711",), "paid")

Keys are strings. Values may be of any type, but must not be changed in place. ``async def`` functions are awaited, and
have ``ainvalidate`` and ``ainvalidate_all``. The rows of another stream can drop values as well: declare that stream
with ``caches={"get_order_status": ["order_id"]}``. A function whose values depend on a room's current state is declared
with ``room_state=``. Each change of that state then drops its values.

Guarantees: a dropped value is never served again, even if a computation that began before the drop ends after it. No
value is kept while this process cannot receive the changes of other processes. A transaction sees its own changes. A
transaction with one snapshot (repeatable read, serializable) stores no value in the cache. It may get a cached value
that is newer than its snapshot.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import connections, transaction

from streams import registry
from streams.conf import stream_settings
from streams.core.cache_store import MISSING, CacheStore, Key, Ticket
from streams.core.invalidation import ROOM_STATE, StateRule, depends_on_room_state, register, room_state_keys
from streams.db.snapshots import keeps_snapshot
from streams.errors import BadCacheKey, UnknownStream
from streams.reading import cache_feed
from streams.writing.side_effects import is_changed_here, is_changed_in_process

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["AsyncCachedFunction", "CachedFunction", "cached", "invalidate_room_state", "invalidate_room_states"]

T = TypeVar("T")


class _Decorate:
    """The decorator that ``cached`` returns, for plain and async functions."""

    def __init__(self, name: str, max_entries: int, room_state: StateRule | None) -> None:
        self._name, self._max_entries, self._room_state = name, max_entries, room_state

    @overload
    def __call__(self, function: Callable[..., Awaitable[T]]) -> AsyncCachedFunction[T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[..., T]) -> CachedFunction[T]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        kind = AsyncCachedFunction if inspect.iscoroutinefunction(function) else CachedFunction
        made: _Cached[Any] = kind(self._name, function, self._max_entries)
        if self._room_state is not None:
            depends_on_room_state(self._name, self._room_state)
        return made


def cached(name: str, *, max_entries: int = 10_000, room_state: StateRule | None = None) -> _Decorate:
    """Decorator that caches a function's values, at most ``max_entries``. The least recently used values are evicted first.

    ``name`` identifies the cache on the stream ``caches``, and must be the same in all processes. ``room_state(room_id,
    user_ids)`` returns the keys to drop when the current state of a room has changed. ``user_ids`` are the users whose
    membership changed. If ``room_state`` returns None, the whole cache is dropped. Raises ``ValueError`` if another
    cache has the name.
    """
    return _Decorate(name, max_entries, room_state)


def invalidate_room_state(room_id: str, user_ids: Iterable[str] = (), using: str | None = None) -> list[int]:
    """Drops in all processes the values that depend on a room's current state, or on the membership of the users in ``user_ids``.

    The package ``events`` calls this function for each change of state that it stores. Returns the tokens of the
    appended facts.
    """
    return invalidate_room_states([(room_id, user_ids)], using)


def invalidate_room_states(rooms: Iterable[tuple[str, Iterable[str]]], using: str | None = None) -> list[int]:
    """Does the same as ``invalidate_room_state`` for several rooms at once.

    Call this function late in a transaction, because readers of the stream ``caches`` wait for the end of the
    transaction.
    """
    return _append([(ROOM_STATE, keys) for room, users in rooms for keys in room_state_keys(room, users)], using)


class _Cached(Generic[T]):
    """The common base class of plain and async cached functions."""

    def __init__(self, name: str, function: Callable[..., Any], max_entries: int) -> None:
        self.name = name
        self.store = CacheStore(max_entries)
        self._function = function
        register(name, self.store)
        self.__doc__, self.__wrapped__, self.__name__ = function.__doc__, function, function.__name__

    def __repr__(self) -> str:
        return f"<cached function {self.name}>"

    def invalidate(self, *key: str) -> int:
        """Drops one value in all processes, once the caller's transaction has committed.

        Does so by a fact on the stream ``caches``. Returns the token of that fact.
        """
        return _append([(self.name, list(self._key(key)))])[0]

    def invalidate_all(self) -> int:
        """Drops all values in all processes, once the caller's transaction has committed.

        Does so by a fact on the stream ``caches``. Returns the token of that fact.
        """
        return _append([(self.name, None)])[0]

    def prefill(self, key: Sequence[str], value: T) -> None:
        """Stores a value that the caller knows.

        Inside a transaction the value is stored after the commit, otherwise at once. The value is not stored if the key
        is invalidated in between. This includes invalidations by the caller's own transaction, so first invalidate,
        then prefill. Outside of a transaction use ``filling`` if the value was read from the database.
        """
        connection = _connection()
        if not cache_feed.is_hearing() or keeps_snapshot(connection):
            return
        # The connection owns the ticket. So the drop at the end of its own transaction does not spoil the ticket. An
        # invalidation later in that transaction spoils it.
        ticket = self.store.begin(self._key(tuple(key)), connection)
        if connection.in_atomic_block:
            transaction.on_commit(_Fill(self.store, ticket, value), using=connection.alias)
        else:
            self.store.finish(ticket, value)

    @contextmanager
    def filling(self, *key: str) -> Iterator[Callable[[T], None]]:
        """Context manager for computing a value of ``key``. Yields a function that stores the computed value.

        The value is not stored if the key is invalidated between the start of the block and the call of the function.
        Nor is the value stored inside a transaction that has itself invalidated the key. The transaction may be rolled
        back, and with it the change to which the value belongs.
        """
        found, connection = self._key(key), _connection()
        keeps = cache_feed.is_hearing() and self._may_serve(connection, found)
        # The ticket is taken before the value is computed, as in `CachedFunction`.
        ticket = self.store.begin(found)

        def fill(value: T) -> None:
            if keeps and cache_feed.is_hearing() and self._may_store(connection, found):
                self.store.finish(ticket, value)

        try:
            yield fill
        finally:
            self.store.abandon(ticket)

    def _key(self, key: tuple[Any, ...]) -> Key:
        if not all(isinstance(part, str) for part in key):
            raise BadCacheKey(
                f"{self.name}{key!r}: the key of a cached value is made of strings; turn other arguments into text."
            )
        return key

    def _may_serve(self, connection: BaseDatabaseWrapper, key: Key) -> bool:
        """Returns true unless the current transaction has itself invalidated the key.

        A transaction that has invalidated the key must compute the value, because the cached value lacks its changes.
        """
        return not is_changed_here(connection, self.name, key)

    def _may_store(self, connection: BaseDatabaseWrapper, key: Key) -> bool:
        """Returns true if a value that the present transaction has computed may be stored.

        Returns false if the transaction has itself invalidated the key, because it may be rolled back. Also returns
        false if the transaction has a fixed snapshot, because this snapshot may be older than the last invalidation.
        """
        return self._may_serve(connection, key) and not keeps_snapshot(connection)


class CachedFunction(_Cached[T]):
    """A plain function whose values are cached."""

    def __call__(self, *key: str) -> T:
        """Returns the cached value, or computes it. Raises ``BadCacheKey`` if an argument is not a string."""
        found = self._key(key)
        connection = _connection()
        if not cache_feed.is_hearing() or not self._may_serve(connection, found):
            self.store.counts.misses += 1
            return self._function(*found)
        value = self.store.get(found)
        if value is not MISSING:
            return value
        # The ticket is taken before the computation. A computes from old data, B commits a change, and the key is
        # dropped, which spoils A's ticket. So A's stale value is returned once and not kept.
        ticket = self.store.begin(found)
        try:
            value = self._function(*found)
            # Checked again: in the meantime notifications may have been lost, or this transaction may have changed the
            # key.
            if cache_feed.is_hearing() and self._may_store(connection, found):
                self.store.finish(ticket, value)
        finally:
            self.store.abandon(ticket)
        return value


class AsyncCachedFunction(_Cached[T]):
    """An ``async def`` function whose values are cached."""

    async def __call__(self, *key: str) -> T:
        """Returns the cached value, or computes it. Raises ``BadCacheKey`` if an argument is not a string."""
        found = self._key(key)
        if not cache_feed.has_begun():
            # The first call blocks until the listener has started, so it must not run on the event loop.
            await sync_to_async(cache_feed.is_hearing, thread_sensitive=False)()
        if not cache_feed.has_begun() or not cache_feed.is_hearing() or is_changed_in_process(self.name, found):
            self.store.counts.misses += 1
            return await self._function(*found)
        value = self.store.get(found)
        if value is not MISSING:
            return value
        ticket = self.store.begin(found)
        try:
            keeps = await sync_to_async(self._may_keep_in_thread, thread_sensitive=True)()
            value = await self._function(*found)
            if keeps and cache_feed.is_hearing() and not is_changed_in_process(self.name, found):
                self.store.finish(ticket, value)
        finally:
            self.store.abandon(ticket)
        return value

    @staticmethod
    def _may_keep_in_thread() -> bool:
        """Returns true unless the present transaction has a fixed snapshot.

        Must be called in the thread that runs the queries of the cached function.
        """
        return not keeps_snapshot(_connection())

    async def ainvalidate(self, *key: str) -> int:
        """Does the same as ``invalidate``, for async code."""
        return await sync_to_async(self.invalidate, thread_sensitive=True)(*key)

    async def ainvalidate_all(self) -> int:
        """Does the same as ``invalidate_all``, for async code."""
        return await sync_to_async(self.invalidate_all, thread_sensitive=True)()


class _Fill:
    """A commit hook that stores a prefilled value under its ticket. ``CacheStore`` explains tickets.

    If Django discards the hook after a rollback, the ticket is abandoned and the value is not stored.
    """

    def __init__(self, store: CacheStore, ticket: Ticket, value: Any) -> None:
        self._store, self._ticket, self._value = store, ticket, value
        weakref.finalize(self, store.abandon, ticket).atexit = False

    def __call__(self) -> None:
        if cache_feed.is_hearing():
            self._store.finish(self._ticket, self._value)


def _append(rows: list[tuple[str, list[str] | None]], using: str | None = None) -> list[int]:
    from streams.catalog.models import CacheInvalidation  # noqa: PLC0415 - functions are decorated before Django's apps are loaded

    if not apps.is_installed("streams.catalog"):
        raise UnknownStream(
            "Values are dropped over the stream 'caches', which this site does not have: add 'streams.catalog' to "
            "INSTALLED_APPS and migrate. Rows of the site's own streams drop values without it: caches={…}."
        )
    facts = [CacheInvalidation(cache_name=name, keys=keys) for name, keys in rows]
    return registry.get("caches").append(*facts, using=using)


def _connection() -> BaseDatabaseWrapper:
    return connections[stream_settings().database]
