"""Drops cached values of this process when other processes change the data behind them.

There is one feed per process and database alias, started by the first call of a cached function. It receives
notifications. It reads the rows of the streams that drop caches from their tables, per writer, behind a cursor. Values
are kept only while the feed receives notifications, so no value is older than the last one received.

A position must not become visible in this process before the values that it invalidates are dropped. So code that moves a
position (the writer's control loop, waiters, followers) calls ``before_advance``. Code that reads the table of positions
(named readers, ``Stream.current``, replication servers, the notifier) calls ``before_shown``.

Facts that this process appends drop their values in its own commit (``streams.writing.side_effects``). They are skipped
here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from streams import epochs
from streams.conf import stream_settings
from streams.core import lookup
from streams.core.bound import BoundStream
from streams.core.invalidation import apply_invalidations, stores
from streams.core.positions import linear_position
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed
from streams.db import driver
from streams.errors import ResyncNeeded
from streams.reading.position_notifications import PositionListener, PositionNotification
from streams.reading.possible_positions import possible_positions
from streams.reading.rows import StoredPosition, existing_rows
from streams.runtime.logs import get_logger

__all__ = [
    "CacheFeed",
    "NotifiedPosition",
    "before_advance",
    "before_shown",
    "has_begun",
    "is_hearing",
    "observers",
    "own_ids",
    "stop_feeds",
]

log = get_logger(__name__)
ROWS_PER_READ = 1_000
#: If a writer's cursor is more rows behind than this, all values are dropped instead of single ones.
MOST_ROWS = 20_000
START_SECONDS = 10.0
RETRY_SECONDS = 1.0


class NotifiedPosition(NamedTuple):
    """A position as a notification gives it."""

    position: int
    generation: int = 0


#: Name of a stream -> writer -> position.
Positions = Mapping[str, Mapping[str, StoredPosition | NotifiedPosition]]


class _Cursor:
    """The positions up to which one stream was read."""

    def __init__(self, generation: int, floor: int) -> None:
        self.generation = generation
        self.floor = floor
        """A writer without an entry in ``positions`` is read from here, because all its facts lie above."""
        self.positions: dict[str, int] = {}

    def known(self) -> dict[str, NotifiedPosition]:
        """Returns the position up to which each writer was read."""
        return {writer: NotifiedPosition(position) for writer, position in self.positions.items()}


class _Listener(PositionListener):
    def __init__(self, feed: CacheFeed, using: str) -> None:
        super().__init__(feed.heard, using, "caches")
        self._feed = feed

    def lost(self) -> None:
        self._feed.is_hearing = False


class CacheFeed:
    """The cache invalidation of one process on one database, with a cursor for each stream."""

    def __init__(self, using: str) -> None:
        self.is_hearing = False
        self._using = using
        self._lock = threading.Lock()
        self._begun = threading.Event()
        self._cursors: dict[str, _Cursor] = {}
        #: Stream -> IDs of own facts that the feed has not read yet.
        self._own: dict[str, set[int]] = {}
        self._epoch = ""
        self._connection = driver.KeptConnection(using, "replsite caches")
        self._listener = _Listener(self, using)

    def start(self) -> bool:
        """Connects, and takes the present positions as the start.

        Returns false if the database cannot be reached, or if the first look at it did not succeed within ``START_SECONDS``.
        """
        try:
            self._listener.start()
        except driver.OperationalError as error:
            log.warning("caches.not_hearing", error=str(error).strip())
            return False
        self._begun.wait(START_SECONDS)
        return self.is_hearing

    def stop(self) -> None:
        """Ends the thread and closes the connections. Values are not kept any more."""
        self.is_hearing = False
        self._listener.stop()
        self._connection.close()

    def heard(self, notifications: list[PositionNotification]) -> None:
        """Reads the streams that the notifications name, and drops the values that became outdated.

        Reads all streams if there are no notifications. Does the same after an error, whatever the notifications name.
        Called in the listener's thread.
        """
        with self._lock, self._connection.cursor() as cursor:
            if not self.is_hearing:
                self._begin_epoch(cursor)
            names = {notification.stream for notification in notifications} if self.is_hearing else set()
            self._catch_up(cursor, names or None)
            self.is_hearing = True  # set last: no value may be kept before the cursors are up to date
        self._begun.set()

    def _begin_epoch(self, cursor: Any) -> None:
        """Drops all cursors and values if the database was restored.

        A restored database may give out IDs again that were read already. Values may come from facts that are gone.
        """
        found = epochs.readable_epoch(cursor)
        if epochs.epoch_changed(self._epoch, found):
            self._cursors.clear()
            self._own.clear()
            for store in stores.values():
                store.drop_all()
        self._epoch = found

    def before_advance(self, streams: Collection[str] | None, cursor: Any = None) -> None:
        """Reads what is announced of these streams (None: of all), and drops the values that it invalidates.

        Does nothing while no values are kept. Errors on the feed's own connection are logged and not raised, those of a
        given ``cursor`` are raised.
        """
        found = (stream for stream in _dropping() if stream.drops_now())
        names = {stream.name for stream in found if streams is None or stream.name in streams}
        if not names or not self.is_hearing:
            return
        with self._lock:
            if cursor is not None:
                self._catch_up(cursor, names)
                return
            try:
                with self._connection.cursor() as own:
                    self._catch_up(own, names)
            except driver.DatabaseError as error:  # no value is served until a later notification could be read
                self.is_hearing = False
                log.warning("caches.not_hearing", error=str(error).strip())

    def before_shown(self, found: Positions) -> None:
        """Drops the values that these positions invalidate. Most positions were read before and need nothing."""
        if behind := {name for name, stored in found.items() if not self._covers(name, stored)}:
            self.before_advance(behind)

    def _covers(self, stream: str, stored: Mapping[str, StoredPosition | NotifiedPosition]) -> bool:
        where = self._cursors.get(stream)
        if where is None:
            return False
        return all(
            at.generation <= where.generation and at.position <= where.positions.get(writer, where.floor)
            for writer, at in stored.items()
        )

    def own_ids(self, stream: str) -> set[int]:
        """Returns the set to which the IDs of own facts are added, so that their rows are skipped.

        The set is replaced when IDs may be given out again. Then IDs of before, added late, are in a set that is not used.
        """
        return self._own.setdefault(stream, set())

    def _catch_up(self, cursor: Any, names: Collection[str] | None) -> None:
        """Reads the streams (None: all) from their cursors to their present positions.

        A stream whose rows drop nothing in this process yet only gets a cursor. It is read from there as soon as a
        function is declared that depends on it. That is early enough: the function's values are computed after the
        declaration, so a change that is missing in one of them lies above the cursor.
        """
        streams = [stream for stream in _dropping() if names is None or stream.name in names]
        streams = [stream for stream in streams if stream.name not in self._cursors or stream.drops_now()]
        if not streams:
            return
        known = {name: where.known() for name, where in self._cursors.items()}
        found = possible_positions(cursor, [stream.name for stream in streams], known)
        for stream in streams:
            self._catch_up_with(cursor, stream, found.get(stream.name, {}))

    def _catch_up_with(self, cursor: Any, stream: BoundStream, stored: dict[str, StoredPosition]) -> None:
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
        for store in stores.values():
            store.drop_all()


def _dropping() -> list[BoundStream]:
    """Returns the streams whose rows can drop cached values."""
    return [stream for stream in lookup.all_streams() if stream.may_drop()]


_feeds: dict[str, CacheFeed] = {}
#: Database alias -> monotonic time before which a failed start is not tried again.
_begin_again_at: dict[str, float] = {}
_guard = threading.Lock()


def is_hearing(using: str | None = None) -> bool:
    """Returns true if values may be kept now.

    The first call starts the feed, and blocks until the feed receives notifications. A start that failed is tried again
    after ``RETRY_SECONDS`` at the earliest; until then the answer is false.
    """
    alias = using or stream_settings().database
    feed = _feeds.get(alias)
    return feed.is_hearing if feed is not None else _begin(alias)


def has_begun(using: str | None = None) -> bool:
    """Returns true if ``is_hearing`` answers without blocking."""
    return (using or stream_settings().database) in _feeds


def _begin(alias: str) -> bool:
    with _guard:
        if alias in _feeds:
            return _feeds[alias].is_hearing
        if time.monotonic() < _begin_again_at.get(alias, 0.0):
            return False
        feed = CacheFeed(alias)
        if not feed.start():
            feed.stop()
            _begin_again_at[alias] = time.monotonic() + RETRY_SECONDS
            return False
        _feeds[alias] = feed
        return True


#: Callbacks that drop other outdated data before positions move. They get the database alias and the notifications (none: look
#: at everything). Must not fail.
observers: list[Callable[[str, Sequence[PositionNotification]], None]] = []


def before_advance(
    streams: Collection[str] | None = None,
    cursor: Any = None,
    using: str | None = None,
    notifications: Sequence[PositionNotification] = (),
) -> None:
    """Drops outdated values before positions of these streams (None: of any) become visible in this process.

    Does nothing where nothing is cached. Uses the feed's own connection unless a ``cursor`` is given. ``notifications`` are the
    notifications that caused the call, if any; the observers get them. Blocks.
    """
    alias = using or stream_settings().database
    feed = _feeds.get(alias)
    if feed is not None:
        feed.before_advance(streams, cursor)
    for tell in observers:
        tell(alias, notifications)


def before_shown(found: Positions, using: str | None = None) -> None:
    """Drops the values that these positions invalidate, before the positions or rows up to them are used.

    Called with positions that were received or read from their table. Runs no query if the feed has read all of them
    already. Must not be called from the feed's own work. May block.
    """
    # Without this: A reads position 7 from the table and hands out fact 7. The feed, on another connection, has not received the
    # notification of 7 yet. A value that fact 7 invalidates would still be served.
    feed = _feeds.get(using or stream_settings().database)
    if feed is not None and feed.is_hearing:
        feed.before_shown(found)


def own_ids(stream: str, using: str) -> set[int]:
    """Returns the set for the IDs of facts whose values this process drops itself.

    The caller takes it when it appends, and adds the IDs after the commit, before the facts are complete.
    """
    feed = _feeds.get(using)
    return feed.own_ids(stream) if feed is not None else set()


def stop_feeds() -> None:
    """Ends all feeds of this process, and drops all values. The next call of a cached function starts a new feed."""
    for feed in list(_feeds.values()):
        feed.stop()
    _feeds.clear()
    for store in stores.values():
        store.drop_all()


def _after_fork() -> None:
    """Removes the feeds and values in a forked child.

    A child receives nothing on its parent's connection, and the parent's values may become outdated meanwhile.
    """
    global _guard  # noqa: PLW0603
    _feeds.clear()
    _guard = threading.Lock()  # a thread of the parent may have held the old one during the fork
    for store in stores.values():
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
