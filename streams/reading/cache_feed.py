"""Drops cached values of this process when other processes change the data behind them.

There is one feed per process and database alias, started by the first call of a cached function. The process's watcher
(``streams.reading.watcher``) calls it with positions before they show. It then reads the rows of the streams that drop
caches from their tables, per writer, behind a cursor. Values are kept only while the watcher receives notifications, so no
value is older than the last one received.

Facts that this process appends drop their values in its own commit (``streams.writing.side_effects``). They are skipped
here.
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
#: If a writer's cursor is more rows behind than this, all values are dropped instead of single ones.
MOST_ROWS = 20_000
RETRY_SECONDS = 1.0


class _Cursor:
    """The positions up to which one stream was read."""

    def __init__(self, generation: int, floor: int) -> None:
        self.generation = generation
        self.floor = floor
        """A writer without an entry in ``positions`` is read from here, because all its facts lie above."""
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

        A stream whose rows drop nothing in this process yet only gets a cursor. It is read from there as soon as a
        function is declared that depends on it. That is early enough: the function's values are computed after the
        declaration, so a change that is missing in one of them lies above the cursor.
        """
        if not (everything or self.is_hearing):  # nothing is kept
            return
        for stream in lookup.all_streams():
            if not stream.may_drop() or not (everything or stream.name in found):
                continue
            if stream.name not in self._cursors or stream.drops_now():
                self._catch_up_with(cursor, stream, found.get(stream.name, {}))

    def lost(self, error: BaseException | None) -> None:
        """Reports an error. No value is served or kept while ``is_hearing`` is false."""
        if error is not None:
            log.warning("caches.not_hearing", error=str(error).strip())

    def restored(self) -> None:
        """Drops all cursors and values.

        A restored database may give out IDs again that were read already. Values may come from facts that are gone.
        """
        self._cursors.clear()
        self._own.clear()
        _drop_all()

    def stop(self) -> None:
        """Ends the feed. Values are not kept any more."""
        self.is_hearing = False
        super().stop()

    def own_ids(self, stream: str) -> set[int]:
        """Returns the set to which the IDs of own facts are added, so that their rows are skipped.

        The set is replaced when IDs may be given out again. Then IDs of before, added late, are in a set that is not used.
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
        # Facts up to here are never read again, not even those whose rows were not seen: compacted, trimmed, or left out
        # because all values were dropped.
        read = linear_position(stored.values(), stream.declaration.empty_position)
        own = self.own_ids(stream.name)
        own.difference_update([number for number in list(own) if number <= read])

    def _apply(self, cursor: Any, stream: BoundStream, writer: str, after: int, upto: int) -> None:
        """Drops the values that the writer's rows with after < token <= upto invalidate.

        Drops all values if a row cannot be understood, if facts were trimmed, or if there are more rows than
        ``MOST_ROWS``. Raises ``DatabaseError``.
        """
        try:
            begin, count, own = after, 0, self.own_ids(stream.name)
            while after < upto and count < MOST_ROWS:
                rows, after = existing_rows(cursor, stream.declaration, writer, after, upto, ROWS_PER_READ)
                count += len(rows)
                apply_invalidations(stream.drops_of(cursor, [row.row for row in rows if row.token not in own]))
                own.difference_update([row.token for row in rows])
            # After the rows: a trim deletes facts and moves the mark in one transaction, so it cannot stay unnoticed.
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
    """Returns true if values may be kept now.

    The first call starts the feed, and blocks until the feed receives notifications. A start that failed is tried again
    after ``RETRY_SECONDS`` at the earliest; until then the answer is false.
    """
    feed = _feeds.get(using)
    return feed.is_hearing if feed is not None else _begin(using or stream_settings().database)


def has_begun(using: str | None = None) -> bool:
    """Returns true if ``is_hearing`` answers without blocking."""
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
    """Returns the set for the IDs of facts whose values this process drops itself.

    The caller takes it when it appends, and adds the IDs after the commit, before the facts are complete.
    """
    feed = _feeds.get(using)
    return feed.own_ids(stream) if feed is not None else set()


def stop_feeds() -> None:
    """Ends all feeds of this process, and drops all values. The next call of a cached function starts a new feed."""
    _feeds.stop()
    _drop_all()


def _after_fork() -> None:
    """Removes the values in a forked child. They may become outdated before it has a feed of its own."""
    for store in stores.values():
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
