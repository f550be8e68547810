"""Invalidations: facts of the stream ``caches``, by which a process tells all others to drop what they keep.

    statuses = Kept("order_status", drop=lambda keys: local.delete(keys[0]), clear=local.clear)

    invalidate("order_status", ["4711"])           # in the transaction that changes the order

    mark = statuses.mark()                         # before the value is read from the database; None: keep nothing
    statuses.keep(mark, lambda: local.set("4711", status))

Any cache in the memory of the process may be used; ``docs/how-to/keep-a-cache.md`` shows Django's. Guarantee: when a
process shows the position of a fact, of any stream, then ``drop`` was called for each invalidation that was committed
with the fact. For the facts of this process that is so if ``invalidate`` appended them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from django.apps import apps
from django.db import connections, transaction

from streams import registry
from streams.conf import stream_settings
from streams.core.invalidation import ROOM_STATE, room_state_keys
from streams.core.positions import linear_position
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed
from streams.db import driver
from streams.db.snapshots import keeps_snapshot
from streams.errors import BadCacheKey, ResyncNeeded, UnknownStream
from streams.reading.watcher import Found, Rank, Subscriber, Subscriptions
from streams.runtime.logs import get_logger
from streams.writing.append import append_facts

__all__ = ["ROOM_STATE", "Kept", "append_invalidations", "invalidate", "invalidate_room_state", "stop_feeds"]

log = get_logger(__name__)
STREAM = "caches"
#: If more facts than this lie above the position up to which all were applied, everything is dropped.
MOST_FACTS = 20_000
RETRY_SECONDS = 1.0
_ABOVE = """
SELECT stream_id, cache_name, keys FROM streams_cacheinvalidation WHERE stream_id > %(floor)s ORDER BY stream_id LIMIT %(limit)s
"""


# --- invalidate -----------------------------------------------------------------------------------------------------


def invalidate(name: str, *keys: Sequence[str], using: str | None = None) -> list[int]:
    """Drops in all processes the values with these keys, once the caller's transaction has committed.

    Without keys, drops all values of that name. Appends a fact for each value to the stream ``caches``. Returns the
    tokens. Raises ``BadCacheKey`` if the keys of a value are not a list of strings.
    """
    for key in keys:
        if isinstance(key, str) or not all(isinstance(part, str) for part in key):
            raise BadCacheKey(
                f"{name}: {key!r:.60} are no keys of a cached value, which are a list of strings, such as ['4711']; "
                f"turn other values into text."
            )
    if name == ROOM_STATE and not all(keys or [()]):
        raise BadCacheKey(
            f"{name}: the state of all rooms cannot be dropped, so name a room: invalidate_room_state(room_id)."
        )
    return append_invalidations([(name, list(key)) for key in keys] or [(name, None)], using)


def invalidate_room_state(room_id: str, user_ids: Iterable[str] = (), using: str | None = None) -> list[int]:
    """Drops in all processes what depends on a room's current state, or on the membership of the users in ``user_ids``.

    The package ``events`` calls this function for each change of state that it stores. Returns the tokens of the
    appended facts.
    """
    return append_invalidations([(ROOM_STATE, keys) for keys in room_state_keys(room_id, user_ids)], using)


def append_invalidations(
    rows: Sequence[tuple[str, list[str] | None]], using: str | None = None, beside: Sequence[driver.Statement] = ()
) -> list[int]:
    """Does the same as ``invalidate`` for values of several names, given as (name, keys). None stands for all values.

    ``beside`` are statements of the caller's transaction to execute first, in the same message.

    Call this function late in a transaction, because readers of the stream ``caches`` wait for the end of the
    transaction.
    """
    if not rows:
        if beside:
            driver.send_together(connections[using or stream_settings().database], beside)
        return []
    if not apps.is_installed("streams.catalog"):
        raise UnknownStream(
            "Values are dropped over the stream 'caches', which this site does not have: add 'streams.catalog' to "
            "INSTALLED_APPS and migrate."
        )
    from streams.catalog.models import CacheInvalidation  # noqa: PLC0415 - not every site has this app

    stream = registry.get(STREAM)
    alias = using or stream.database
    connection = connections[alias]
    facts = [CacheInvalidation(cache_name=name, keys=keys) for name, keys in rows]
    with nullcontext() if connection.in_atomic_block else transaction.atomic(using=alias):
        ids = append_facts(stream, facts, alias, beside)
        # Before other hooks, which may use the cache. Django drops it with the savepoint.
        hooks: list[Any] = connection.run_on_commit
        hooks.insert(0, (set(connection.savepoint_ids), _DropAfterCommit(rows, ids, alias), True))
    return ids


class _DropAfterCommit:
    """Applies facts of this process, once their commit is known and before this process shows their positions."""

    def __init__(self, rows: Sequence[tuple[str, list[str] | None]], ids: list[int], alias: str) -> None:
        self._rows, self._ids, self._alias = rows, ids, alias
        self.names = {name for name, _ in rows}

    def __call__(self) -> None:
        for name, keys in self._rows:
            _drop(name, keys)
        # Afterwards: another process may have found the facts complete before this one, and then the feed must not skip them.
        if (feed := _feeds.get(self._alias)) is not None:
            feed.record_applied(self._ids)


def _is_changed_here(name: str, alias: str) -> bool:
    hooks: list[Any] = connections[alias].run_on_commit
    return any(isinstance(hook, _DropAfterCommit) and name in hook.names for _, hook, _ in hooks)


# --- receive --------------------------------------------------------------------------------------------------------


class Kept:
    """What this process keeps under the name of a cache, wherever it keeps it.

    ``drop`` is called with the keys of each fact of that name, and ``clear`` for a fact without keys, and whenever facts
    may have been missed. Both are called by another thread, and must be quick.
    """

    def __init__(
        self, name: str, drop: Callable[[list[str]], object], clear: Callable[[], object], using: str | None = None
    ) -> None:
        self.name, self._drop, self._clear, self._using = name, drop, clear, using
        #: How often something was dropped.
        self._dropped = 0
        #: False while the cache may have values whose drop was missed.
        self._is_clean = False
        self._lock = threading.RLock()
        _all.append(self)

    def mark(self) -> int | None:
        """Returns what to give to ``keep``, or None if nothing may be served or kept now.

        That is so while facts are not received, and in a transaction that has invalidated something of this name: it
        sees its own change, which may be rolled back. The first call in a process starts the listener, and blocks until
        it listens. Whatever the cache has from before, from an earlier process or from the parent of a fork, is cleared
        then.
        """
        if _is_current(self._alias) and not self._is_clean:
            self.invalidate(None)
        return self._mark()

    def keep(self, mark: int | None, store: Callable[[], object]) -> bool:
        """Calls ``store`` unless something of this name was dropped since ``mark()``. Returns true if it was called.

        So take the mark before the value is read from the database. Nothing is kept in a transaction with one snapshot
        (REPEATABLE READ, SERIALIZABLE), which may be older than the mark. ``store`` must be quick, and may not use streams.
        """
        if mark is None or keeps_snapshot(connections[self._alias]):
            return False
        # A reads the old row. B changes it and invalidates. Then A would store the old value, after it was dropped.
        with self._lock:
            is_fresh = self._mark() == mark
            if is_fresh:
                store()
            return is_fresh

    def close(self) -> None:
        """Ends the calls of ``drop`` and ``clear``."""
        if self in _all:
            _all.remove(self)

    def invalidate(self, keys: list[str] | None) -> None:
        """Drops the value of these keys, or all values."""
        with self._lock:
            self._dropped += 1
            # If the site's own code fails, everything is dropped; if that fails, too, nothing is served until it works.
            for attempt in ((lambda: self._drop(keys)) if keys is not None else self._clear, self._clear):
                try:
                    attempt()
                except Exception as error:  # noqa: BLE001
                    log.warning("caches.not_dropped", cache=self.name, error=f"{type(error).__name__}: {error}")
                else:
                    self._is_clean = self._is_clean or attempt is self._clear
                    return
            self._is_clean = False

    def after_fork(self) -> None:
        # A thread of the parent may have held the old lock.
        self._lock = threading.RLock()

    @property
    def _alias(self) -> str:
        return self._using or stream_settings().database

    def _mark(self) -> int | None:
        feed = _feeds.get(self._alias)
        may_serve = feed is not None and feed.is_current and self._is_clean
        return self._dropped if may_serve and not _is_changed_here(self.name, self._alias) else None


_all: list[Kept] = []


def _drop(name: str, keys: list[str] | None) -> None:
    for kept in list(_all):
        if kept.name == name:
            kept.invalidate(keys)


class _Feed(Subscriber):
    """Reads the invalidations of one database, before this process shows any position that was committed with them."""

    rank = Rank.CACHES

    def __init__(self, using: str) -> None:
        super().__init__(using)
        #: All facts up to here were applied, and none below is to come. None: nothing is kept yet.
        self._floor: int | None = None
        #: The facts above ``_floor`` that were applied, at most ``MOST_FACTS``.
        self._applied: set[int] = set()
        self._is_too_far = False

    def apply(self, cursor: Any, found: Found, *, everything: bool) -> None:
        """Drops values for all committed facts, whichever stream has moved.

        A fact of another stream may show before the position of the stream ``caches`` reaches the invalidation that was
        committed with it. So facts above that position are applied, too. They are not applied again.
        """
        if not (everything or self.is_current):  # nothing is kept
            return
        begins = self._floor is None
        if self._floor is not None:
            self._drop_above(cursor, self._floor)
            if everything or STREAM in found:  # what was trimmed before it was read here was below these positions
                try:
                    check_not_trimmed(cursor, STREAM, VectorToken(self._floor))
                except ResyncNeeded as error:
                    _clear_all(str(error))
        if begins or STREAM in found:
            empty = registry.get(STREAM).declaration.empty_position
            floor = self._floor = linear_position(found.get(STREAM, {}).values(), empty)
            # Of a copy, because threads that commit add their own facts meanwhile.
            self._applied = {number for number in self._applied.copy() if number > floor}
        if begins:
            # Facts up to the floor are not applied. What was read before them may be kept: by the parent of a fork, for a former
            # feed, or since ``restored``.
            _clear_all()

    def _drop_above(self, cursor: Any, floor: int) -> None:
        cursor.execute(_ABOVE, {"floor": floor, "limit": MOST_FACTS + 1})
        rows = cursor.fetchall()
        was_too_far, self._is_too_far = self._is_too_far, len(rows) > MOST_FACTS
        if self._is_too_far:  # counts also those that were applied, because newer ones may lie behind the limit
            _clear_all("" if was_too_far else f"more than {MOST_FACTS} facts behind")
            return
        for number, name, keys in rows:
            if number not in self._applied:
                _drop(name, keys)
                self._applied.add(number)

    def record_applied(self, ids: Sequence[int]) -> None:
        """A fact that is recorded too late is applied twice, which does no harm."""
        if len(self._applied) + len(ids) <= MOST_FACTS:
            self._applied.update(ids)

    def lost(self, error: BaseException | None) -> None:
        """Logs an error. While ``is_current`` is false, ``Kept.mark`` returns None."""
        if error is not None:
            log.warning("caches.not_hearing", error=str(error).strip())

    def restored(self) -> None:
        """Drops everything, because the database was restored and may give out IDs again that were applied already."""
        self._floor, self._applied = None, set()
        log.warning("caches.all_dropped", reason="the database was restored")

    def stop(self) -> None:
        """Ends the feed. From now on nothing may be kept."""
        self.is_current = False
        super().stop()


def _clear_all(reason: str = "") -> None:
    if reason:
        log.warning("caches.all_dropped", reason=reason)
    for kept in list(_all):
        kept.invalidate(None)


_feeds = Subscriptions(_Feed)
#: Database alias -> monotonic time before which a failed start is not tried again.
_retry_at: dict[str, float] = {}


def _is_current(alias: str) -> bool:
    feed = _feeds.get(alias)
    if feed is not None:
        return feed.is_current
    if not apps.is_installed("streams.catalog") or time.monotonic() < _retry_at.get(alias, 0.0):
        return False
    try:
        return _feeds.obtain(alias).is_current
    except driver.OperationalError as error:
        log.warning("caches.not_hearing", error=str(error).strip())
        _retry_at[alias] = time.monotonic() + RETRY_SECONDS
        return False


def stop_feeds() -> None:
    """Ends all feeds of this process. The next ``mark`` starts a new feed, and clears the cache."""
    _feeds.stop()


def _after_fork() -> None:
    for kept in list(_all):
        kept.after_fork()


os.register_at_fork(after_in_child=_after_fork)
