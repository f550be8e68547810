"""Drops cached values of this process when other processes change the data behind them.

Each process has one *cache feed* for each database alias. The first call of a cached function starts the feed. The
process's watcher (``streams.reading.watcher``) passes positions to the feed before any other code of the process sees
them. The feed then reads the new rows of the streams that invalidate caches. For each writer it begins at the position
where its last read ended. Values are cached only while the watcher receives notifications, so no value is older than
the last notification.

The feed skips facts that this process appended itself: their values are dropped when the transaction commits
(``streams.writing.side_effects``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from streams.conf import stream_settings
from streams.core import lookup
from streams.core.bound import BoundStream
from streams.core.invalidation import apply_invalidations, stores
from streams.core.positions import linear_position
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed
from streams.db import driver
from streams.errors import ResyncNeeded
from streams.reading.rows import StoredPosition, existing_rows
from streams.reading.watcher import Found, Rank, Subscriber, Subscriptions
from streams.runtime.logs import get_logger

__all__ = ["CacheFeed", "has_begun", "is_hearing", "own_ids", "stop_feeds"]

log = get_logger(__name__)
ROWS_PER_READ = 1_000
#: If the feed has to read more rows of a writer than this at once, it drops all values instead of single ones.
MOST_ROWS = 20_000
RETRY_SECONDS = 1.0


class _Cursor:
    """The positions up to which the cache feed has read one stream."""

    def __init__(self, generation: int, floor: int) -> None:
        self.generation = generation
        self.floor = floor
        """The position from which a writer without an entry in ``positions`` is read. All its facts lie above."""
        self.positions: dict[str, int] = {}


class CacheFeed(Subscriber):
    """The cache invalidation of one process on one database, with a cursor for each stream."""

    rank = Rank.CACHES

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self._cursors: dict[str, _Cursor] = {}
        #: Stream -> IDs of own facts that the feed has not read yet.
        self._own: dict[str, set[int]] = {}

    def before(self, cursor: Any, found: Found, *, everything: bool) -> None:
        """Drops the values that the facts up to these positions invalidate.

        If no cached function of this process depends on a stream yet, only the present positions of the stream are
        recorded. The stream is read from these positions on, once such a function is declared. That is early enough:
        all values of the function are computed later, so they contain every change up to the recorded positions.
        """
        if not (everything or self.is_hearing):  # nothing is kept
            return
        for stream in lookup.all_streams():
            if not stream.may_drop() or not (everything or stream.name in found):
                continue
            if stream.name not in self._cursors or stream.drops_now():
                self._catch_up_with(cursor, stream, found.get(stream.name, {}))

    def lost(self, error: BaseException | None) -> None:
        """Logs an error. While ``is_hearing`` is false, no cached value is returned, and no value is stored in a cache."""
        if error is not None:
            log.warning("caches.not_hearing", error=str(error).strip())

    def restored(self) -> None:
        """Drops all cursors and all cached values, because the database was restored.

        A restored database may give out IDs again that were read already, and cached values may come from facts that are
        gone.
        """
        self._cursors.clear()
        self._own.clear()
        _drop_all()

    def stop(self) -> None:
        """Ends the feed. From now on no values are cached."""
        self.is_hearing = False
        super().stop()

    def own_ids(self, stream: str) -> set[int]:
        """Returns the set of IDs whose rows the feed skips. The caller adds the IDs of facts that this process appended.

        The feed begins a new set when the stream may give out the same IDs again. An older ID that is added late then goes
        into the old set, which is no longer used.
        """
        return self._own.setdefault(stream, set())

    def _catch_up_with(self, cursor: Any, stream: BoundStream, stored: Mapping[str, StoredPosition]) -> None:
        generation = max((at.generation for at in stored.values()), default=0)
        where = self._cursors.get(stream.name)
        if where is None:
            where = _Cursor(generation, linear_position(stored.values(), stream.declaration.empty_position))
            where.positions = {writer: at.position for writer, at in stored.items()}
            self._cursors[stream.name] = where
        elif generation > where.generation:  # a stream in memory that started again at 0
            where = self._cursors[stream.name] = _Cursor(generation, 0)
            self._own.pop(stream.name, None)
        for writer, at in stored.items():
            after = where.positions.get(writer, where.floor)
            if at.position > after:
                self._apply(cursor, stream, writer, after, at.position)
            where.positions[writer] = max(at.position, after)
        # Facts up to here are never read again, so their IDs can be removed. That includes facts whose rows the feed did not
        # read, because they were compacted or trimmed, or because all values were dropped.
        read = linear_position(stored.values(), stream.declaration.empty_position)
        own = self.own_ids(stream.name)
        own.difference_update([number for number in list(own) if number <= read])

    def _apply(self, cursor: Any, stream: BoundStream, writer: str, after: int, upto: int) -> None:
        """Drops the cached values that the writer's rows with ``after < token <= upto`` invalidate.

        Drops all cached values if the site's rule for a row fails, if facts were trimmed, or if there are more rows
        than ``MOST_ROWS``. Raises ``DatabaseError``.
        """
        try:
            begin, count, own = after, 0, self.own_ids(stream.name)
            while after < upto and count < MOST_ROWS:
                rows, after = existing_rows(cursor, stream.declaration, writer, after, upto, ROWS_PER_READ)
                count += len(rows)
                apply_invalidations(stream.drops_of(cursor, [row.row for row in rows if row.token not in own]))
                own.difference_update([row.token for row in rows])
            # Checked after the rows were read. A trim deletes facts and moves the low-water mark in one transaction, so a trim
            # before the reading is always noticed.
            check_not_trimmed(cursor, stream.name, VectorToken(begin), writer)
            if after >= upto:
                return
            reason = f"more than {MOST_ROWS} rows behind"
        except driver.DatabaseError:
            raise
        except ResyncNeeded as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - the site's own rule failed: drop everything
            reason = f"{type(error).__name__}: {error}"
        log.warning("caches.all_dropped", stream=stream.name, writer=writer, reason=reason)
        _drop_all()


def _drop_all() -> None:
    for store in stores.values():
        store.drop_all()


_feeds = Subscriptions(CacheFeed)
#: Database alias -> monotonic time before which a failed start is not tried again.
_begin_again_at: dict[str, float] = {}


def is_hearing(using: str | None = None) -> bool:
    """Returns true if values may be cached now, because invalidations are being received.

    The first call starts the feed, and blocks until the feed receives notifications. After a failed start the next
    attempt is made after ``RETRY_SECONDS`` at the earliest. Until then false is returned.
    """
    feed = _feeds.get(using)
    return feed.is_hearing if feed is not None else _begin(using or stream_settings().database)


def has_begun(using: str | None = None) -> bool:
    """Returns true if the feed has started, so that ``is_hearing`` does not block."""
    return _feeds.get(using) is not None


def _begin(alias: str) -> bool:
    if time.monotonic() < _begin_again_at.get(alias, 0.0):
        return False
    try:
        return _feeds.obtain(alias).is_hearing
    except driver.OperationalError as error:
        log.warning("caches.not_hearing", error=str(error).strip())
        _begin_again_at[alias] = time.monotonic() + RETRY_SECONDS
        return False


def own_ids(stream: str, using: str) -> set[int]:
    """Returns the set of the IDs under which this process has appended to a stream. The feed skips these rows.

    When a transaction of this process commits, the process drops the values that its facts invalidate. Code that
    appends must call this function when it appends. It must add the new IDs to the set after the commit, before the
    facts are complete.
    """
    feed = _feeds.get(using)
    return feed.own_ids(stream) if feed is not None else set()


def stop_feeds() -> None:
    """Ends all feeds of this process, and drops all values. The next call of a cached function starts a new feed."""
    _feeds.stop()
    _drop_all()


def _after_fork() -> None:
    """Removes the cached values in a forked child. They may become outdated before the child has a feed of its own."""
    for store in stores.values():
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
