"""Drops cached values of this process that others have made old: one feed per process and database alias.

It hears pokes, and reads the rows of the streams that drop caches from their tables, per writer, behind a cursor. Begun when
a cached function is called for the first time; values are kept only while it hears, so none is older than what it has heard
of. A position never shows in this process before the values that it makes old are gone: whatever moves one (the writer's
background thread, waiters, followers) calls ``before_advance``, and whatever goes by the table of positions (named
readers, ``Stream.current``, replication servers, hot caches) calls ``before_shown``.

What this process appends itself is dropped by its own commit (``streams.writing.side_effects``), and passed over here.
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
from streams.core.invalidation import apply_drops, stores
from streams.core.positions import linear_position
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed
from streams.db import driver
from streams.errors import ResyncNeeded
from streams.reading.pokes import PositionListener, PositionNotification
from streams.reading.possible_positions import possible_positions
from streams.reading.rows import StoredPosition, rows_that_are_there
from streams.runtime.logs import get_logger

__all__ = [
    "CacheFeed",
    "Shown",
    "before_advance",
    "before_shown",
    "forget_feeds",
    "has_begun",
    "is_hearing",
    "note_own",
    "observers",
]

log = get_logger(__name__)
ROWS_PER_READ = 1_000
#: Further behind than this, everything is dropped instead of one by one.
MOST_ROWS = 20_000
START_SECONDS = 10.0
RETRY_SECONDS = 1.0


class Shown(NamedTuple):
    """A position as notifications tell it."""

    position: int
    generation: int = 0


#: BoundStream -> writer -> position.
Positions = Mapping[str, Mapping[str, StoredPosition | Shown]]


class _Cursor:
    """How far one stream was read."""

    def __init__(self, generation: int, floor: int) -> None:
        self.generation = generation
        self.floor = floor
        """Facts of a writer that is new to us lie above this."""
        self.positions: dict[str, int] = {}

    def known(self) -> dict[str, Shown]:
        """The positions up to which it was read."""
        return {writer: Shown(position) for writer, position in self.positions.items()}


class _Listener(PositionListener):
    def __init__(self, feed: CacheFeed, using: str) -> None:
        super().__init__(feed.heard, using, "caches")
        self._feed = feed

    def lost(self) -> None:
        self._feed.is_hearing = False


class CacheFeed:
    """The cursors of one process on one database."""

    def __init__(self, using: str) -> None:
        self.is_hearing = False
        self._using = using
        self._lock = threading.Lock()
        self._begun = threading.Event()
        self._cursors: dict[str, _Cursor] = {}
        self._own: set[tuple[str, int]] = set()
        self._epoch = ""
        self._connection = driver.KeptConnection(using, "replsite caches")
        self._listener = _Listener(self, using)

    def start(self) -> bool:
        """Connect and take the present positions as the beginning; False when the database is away."""
        try:
            self._listener.start()
        except driver.OperationalError as error:
            log.warning("caches.not_hearing", error=str(error).strip())
            return False
        self._begun.wait(START_SECONDS)
        return self.is_hearing

    def stop(self) -> None:
        """End the thread; nothing is kept any more."""
        self.is_hearing = False
        self._listener.stop()
        self._connection.close()

    def heard(self, pokes: list[PositionNotification]) -> None:
        """In the listener's thread; no pokes: look at everything, as also after an error, whatever these pokes are of."""
        with self._lock, self._connection.cursor() as cursor:
            if not self.is_hearing:
                self._begin_epoch(cursor)
            names = {poke.stream for poke in pokes} if self.is_hearing else set()
            self._catch_up(cursor, names or None)
            self.is_hearing = True
        self._begun.set()

    def _begin_epoch(self, cursor: Any) -> None:
        """A database that was restored may give out IDs again that were read, and values may be of facts that are gone."""
        found = epochs.epoch_to_see(cursor)
        if epochs.is_another_life(self._epoch, found):
            self._cursors.clear()
            self._own.clear()
            for store in stores.values():
                store.drop_all()
        self._epoch = found

    def before_advance(self, streams: Collection[str] | None, cursor: Any = None) -> None:
        """Drop what everything that is announced of these streams makes old."""
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
            except driver.DatabaseError as error:  # then nothing is served until a later poke could be followed up
                self.is_hearing = False
                log.warning("caches.not_hearing", error=str(error).strip())

    def before_shown(self, found: Positions) -> None:
        """Drop what these positions make old; most were covered by what was heard before."""
        if behind := {name for name, stored in found.items() if not self._covers(name, stored)}:
            self.before_advance(behind)

    def _covers(self, stream: str, stored: Mapping[str, StoredPosition | Shown]) -> bool:
        where = self._cursors.get(stream)
        if where is None:
            return False
        return all(
            at.generation <= where.generation and at.position <= where.positions.get(writer, where.floor)
            for writer, at in stored.items()
        )

    def note_own(self, stream: str, ids: Collection[int]) -> None:
        """What these facts make old was dropped by the commit of this process."""
        if self.is_hearing:
            self._own.update((stream, number) for number in ids)

    def _catch_up(self, cursor: Any, names: Collection[str] | None) -> None:
        """Read on. A stream whose rows drop nothing in this process yet gets its cursor, and is read from there later.

        A function that depends on rooms' state may be declared at any time. Its values are computed after that, so a change
        that one of them lacks lies above the cursor.
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
        elif generation > where.generation:  # a stream in memory that began anew
            where = self._cursors[stream.name] = _Cursor(generation, 0)
        for writer, at in stored.items():
            after = where.positions.get(writer, where.floor)
            if at.position > after:
                self._apply(cursor, stream, writer, after, at.position)
            where.positions[writer] = max(at.position, after)

    def _apply(self, cursor: Any, stream: BoundStream, writer: str, after: int, upto: int) -> None:
        """All or nothing: what cannot be understood, or is gone from the table, drops everything."""
        try:
            begin, count = after, 0
            while after < upto and count < MOST_ROWS:
                rows, after = rows_that_are_there(cursor, stream.declaration, writer, after, upto, ROWS_PER_READ)
                count += len(rows)
                others = [row.row for row in rows if (stream.name, row.token) not in self._own]
                apply_drops(stream.drops_of(cursor, others))
                self._own.difference_update([(stream.name, row.token) for row in rows])
            check_not_trimmed(cursor, stream.name, VectorToken(begin), writer)
            if after >= upto:
                return
            reason = f"more than {MOST_ROWS} rows behind"
        except driver.DatabaseError:
            raise
        except ResyncNeeded as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - a rule of the site's own; no value may survive it
            reason = f"{type(error).__name__}: {error}"
        log.warning("caches.all_dropped", stream=stream.name, writer=writer, reason=reason)
        for store in stores.values():
            store.drop_all()


def _dropping() -> list[BoundStream]:
    """The streams whose rows can drop cached values."""
    return [stream for stream in lookup.all_streams() if stream.may_drop()]


_feeds: dict[str, CacheFeed] = {}
_begin_again_at: dict[str, float] = {}
_guard = threading.Lock()


def is_hearing(using: str | None = None) -> bool:
    """Whether values may be kept now; begins to listen at the first call, which blocks until it does."""
    alias = using or stream_settings().database
    feed = _feeds.get(alias)
    return feed.is_hearing if feed is not None else _begin(alias)


def has_begun(using: str | None = None) -> bool:
    """Whether ``is_hearing`` answers without blocking."""
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


#: Others that keep something old unless told before positions move: called with the database alias and the pokes that say so
#: (none: look at everything). Must not fail.
observers: list[Callable[[str, Sequence[PositionNotification]], None]] = []


def before_advance(
    streams: Collection[str] | None = None,
    cursor: Any = None,
    using: str | None = None,
    pokes: Sequence[PositionNotification] = (),
) -> None:
    """Called before positions of these streams (None: of any) are seen to move here; does nothing where nothing is cached.

    Without a ``cursor`` on a connection of its own. ``pokes`` are what was heard, if that is why. Blocks.
    """
    alias = using or stream_settings().database
    feed = _feeds.get(alias)
    if feed is not None:
        feed.before_advance(streams, cursor)
    for tell in observers:
        tell(alias, pokes)


def before_shown(found: Positions, using: str | None = None) -> None:
    """Called with positions that were heard or read from their table, before anybody sees them or the rows up to there.

    A reads the positions and hands out a fact; B, which hears on another connection, has not heard of it yet: a value that the
    fact makes old would still be served. Costs nothing where all of it was heard. Not within the feed's own work. May block.
    """
    feed = _feeds.get(using or stream_settings().database)
    if feed is not None and feed.is_hearing:
        feed.before_shown(found)


def note_own(stream: str, ids: Collection[int], using: str) -> None:
    """This process has dropped what these facts make old, and they are not complete yet."""
    feed = _feeds.get(using)
    if feed is not None:
        feed.note_own(stream, ids)


def forget_feeds() -> None:
    """End all feeds of this process, and forget all values; the next call of a cached function begins anew."""
    for feed in list(_feeds.values()):
        feed.stop()
    _feeds.clear()
    for store in stores.values():
        store.drop_all()


def _after_fork() -> None:
    """A child hears nothing of its parent's connection, and its parent's values may grow old meanwhile."""
    global _guard  # noqa: PLW0603
    _feeds.clear()
    _guard = threading.Lock()
    for store in stores.values():
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
