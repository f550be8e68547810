"""Receives the positions of a database once for a whole process, and has each part of the process apply them in order.

Each process has one *watcher* for each database alias, as long as there are subscribers. The watcher has a thread that
listens for notifications, and a connection on which rows are read. The watcher knows the positions, the epoch and the
generations. Its subscribers are the caches, the notifier, and the callers that wait for positions.

No code of this process may see a position before each subscriber has applied it. So each batch of notifications has two
phases: first ``apply`` of all subscribers is called, then ``publish`` of all subscribers. Followers, and all code that reads
the table of positions, get positions in another way. They call ``before_shown`` before they show
or use a position.

After a lost connection or an error, subscribers are called with all positions of the table. A forked child has no watcher.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, ClassVar, Generic, TypeVar

from streams import epochs
from streams.conf import stream_settings
from streams.db import driver
from streams.reading.position_notifications import PositionListener
from streams.reading.possible_positions import LOCK_SECONDS, may_restart, possible_positions, went_back
from streams.reading.rows import StoredPosition

START_SECONDS = 10.0
#: Stream -> writer -> stored position.
Found = Mapping[str, Mapping[str, StoredPosition]]


class Rank(IntEnum):
    """The order in which subscribers are called. Subscribers that show positions or wake callers come after the caches."""

    CACHES, NOTIFIER, WAITERS = range(3)


class Subscriber:
    """A part of this process that follows the positions of one database.

    The watcher calls its methods, except ``prepare`` and ``stop``.
    """

    rank: ClassVar[Rank]
    watcher: PositionWatcher
    is_current = False
    """True while the subscriber has applied everything that was received, and nothing can have been lost."""

    def __init__(self, using: str) -> None:
        self.using = using
        #: Set once all positions were applied for the first time.
        self.all_applied = threading.Event()

    def prepare(self) -> None:
        """Does slow work before the first call of ``apply``. Runs in the thread that first needs the subscriber.

        May raise any error.
        """

    def apply(self, cursor: Any, found: Found, *, everything: bool) -> None:
        """Applies the facts up to these positions, before any code of this process sees one of the positions.

        If ``everything`` is true, ``found`` has the positions of all streams. That is so at the start and after an
        error. Only one thread at a time calls this method. If this method raises an error, ``lost`` is called, and soon
        this method is called again.
        """

    def publish(self, found: Found) -> None:
        """Shows the positions to the code that uses the subscriber. All subscribers have applied the positions before."""

    def lost(self, error: BaseException | None) -> None:
        """Reacts to an error, or to the loss of the connection (``error`` is None).

        Until ``apply`` is called with ``everything``, the subscriber must not rely on notifications.
        """

    def restored(self) -> None:
        """Discards positions and everything derived from facts, because the database was restored.

        The restored database may give out IDs again whose facts were applied already.
        """

    def stop(self) -> None:
        """Ends the subscription. Must not be called by the watcher's thread."""
        with _guard:
            watcher = _watchers.get(self.using)
            if watcher is None or watcher.remove(self):
                return
            del _watchers[self.using]
        watcher.close()


class PositionWatcher(PositionListener):
    """The thread, the connections and the known positions of one database in this process."""

    def __init__(self, using: str) -> None:
        super().__init__(self.apply_and_publish, using, "positions")
        self.is_away = False
        #: Held while facts are applied, so that each position is applied once and in order.
        self._applying = threading.RLock()
        self._connection_for_rows = driver.KeptConnection(
            using, "replsite positions", reads_in_order=True, lock_seconds=LOCK_SECONDS
        )
        self._known: Found = {}
        self._epoch = ""
        self._is_behind = True
        self._subscribers: tuple[Subscriber, ...] = ()

    # --- subscribers ----------------------------------------------------------------------------------------------

    def add(self, subscriber: Subscriber) -> None:
        """Adds a subscriber. The watcher soon calls its ``apply`` with all positions."""
        subscriber.watcher = self
        with self._applying:
            self._subscribers = tuple(sorted([*self._subscribers, subscriber], key=lambda each: each.rank))
            self.reread()

    def remove(self, subscriber: Subscriber) -> bool:
        """Removes a subscriber, which is not called after that. Returns true if other subscribers remain."""
        with self._applying:
            self._subscribers = tuple(other for other in self._subscribers if other is not subscriber)
            return bool(self._subscribers)

    def reread(self) -> None:
        """Requests that all subscribers are soon called with all positions of the table."""
        self._is_behind = True
        self.nudge()

    def known(self, stream: str) -> Mapping[str, StoredPosition]:
        """Returns the known positions of a stream by writer.

        If a subscriber calls this method, all subscribers of lower rank have applied the returned positions.
        """
        return self._known.get(stream, {})

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """Yields a cursor on which to read facts that are to be applied. No other thread applies facts meanwhile."""
        with self._applying, self._connection_for_rows.cursor() as cursor:
            yield cursor

    def close(self) -> None:
        self.stop()
        with self._applying:
            self._connection_for_rows.close()

    # --- positions that others are about to show ------------------------------------------------------------------

    def before_shown(self, found: Found) -> None:
        """Makes the subscribers apply everything up to these positions. Does nothing if the positions are known already."""
        if self.keeps_values():
            with self._applying:
                if behind := {stream for stream, stored in found.items() if not self._is_known(stream, stored)}:
                    self.catch_up(behind)

    def catch_up(self, streams: Collection[str] | None = None) -> None:
        """Reads the stored positions of ``streams`` (None: of all streams), and has the subscribers apply them.

        Does not raise errors. After an error ``lost`` of the subscribers is called, and later ``apply`` with all positions.
        """
        if self.keeps_values():
            with self._applying:
                error = self._apply(lambda cursor: self._read(cursor, streams))[1]
            if error is not None:
                self.nudge()

    def keeps_values(self) -> bool:
        """Returns true if a subscriber holds data that new positions may make outdated."""
        return any(subscriber.is_current and subscriber.rank < Rank.WAITERS for subscriber in self._subscribers)

    def _is_known(self, stream: str, stored: Mapping[str, StoredPosition]) -> bool:
        known, restarts = self.known(stream), may_restart(stream)
        for writer, at in stored.items():
            ours = known.get(writer)
            if ours is None or at.position > ours.position:
                return False
            if restarts and at.generation != ours.generation:  # the same number may be of another generation
                return False
        return True

    # --- what is received -----------------------------------------------------------------------------------------

    def apply_and_publish(self, streams: Sequence[str]) -> None:
        """Makes the subscribers apply and show the positions of these streams, or of all streams if the list is empty."""
        if not self._subscribers:
            return  # without subscribers the connection for rows is not opened
        with self._applying:
            everything = self._is_behind or not streams
            found, error = self._apply(
                self._read_all if everything else lambda cursor: self._read(cursor, streams),
                everything=everything,
            )
        for subscriber in self._subscribers:
            subscriber.publish(found)
        if error is not None:
            raise error  # the listener logs it, and calls again with an empty list

    def connected(self) -> None:
        super().connected()
        self.is_away = False

    def lost(self) -> None:
        self.is_away = True
        self._lose(self._subscribers, None)

    def nudged(self) -> None:
        """Applies all positions if that was requested. Runs in the listener's thread."""
        if self._is_behind:
            self.apply_and_publish([])

    # --- apply, with ``_applying`` held ---------------------------------------------------------------------------

    def _apply(self, find: Callable[[Any], Found], *, everything: bool = False) -> tuple[Found, Exception | None]:
        """Makes all subscribers apply the positions that ``find`` returns. Returns (positions, error).

        If ``find`` raises, returns no positions and the error of ``find``. If subscribers raise, returns the error of
        the last of them. If none of them raises, the error is None.
        """
        try:
            with self.cursor() as cursor:
                found = find(cursor)
        except Exception as error:  # noqa: BLE001 - the caller decides
            self._lose(self._subscribers, error)
            return {}, error
        if everything:
            self._is_behind = False  # before the calls, because each subscriber may request another read of everything
        failed: Exception | None = None
        for subscriber in self._subscribers:
            try:
                with self.cursor() as cursor:  # one for each, so that an error of one does not affect the others
                    subscriber.apply(cursor, found, everything=everything)
            except Exception as error:  # noqa: BLE001 - the caller decides
                self._lose([subscriber], error)
                failed = error
            else:
                if everything:
                    subscriber.is_current = True  # last: no value may be kept before everything was applied
                    subscriber.all_applied.set()
        return found, failed

    def _lose(self, subscribers: Iterable[Subscriber], error: BaseException | None) -> None:
        self._is_behind = True
        for subscriber in subscribers:
            subscriber.is_current = False
            subscriber.lost(error)

    def _read_all(self, cursor: Any) -> Found:
        # The database may have been restored while the connection was lost. A new epoch shows this.
        found = epochs.readable_epoch(cursor)
        if epochs.epoch_changed(self._epoch, found):
            self._known = {}
            self._restored()
        self._epoch = found
        return self._read(cursor, None)

    def _restored(self) -> None:
        for subscriber in self._subscribers:
            subscriber.restored()
        self.reread()

    def _read(self, cursor: Any, streams: Collection[str] | None) -> Found:
        found = possible_positions(cursor, None if streams is None else sorted(streams), self._known, reads_often=True)
        if went_back({name: at for name, at in self._known.items() if streams is None or name in streams}, found):
            self._restored()
        self._known = {**({} if streams is None else self._known), **found}
        return found


# --- one watcher per database ---------------------------------------------------------------------------------------

S = TypeVar("S", bound=Subscriber)
_watchers: dict[str, PositionWatcher] = {}
_guard = threading.Lock()
_kinds: list[Subscriptions[Any]] = []


class Subscriptions(Generic[S]):
    """The subscribers of one class, with one subscriber for each database alias. Each is made when it is first needed."""

    def __init__(self, make: Callable[[str], S]) -> None:
        self._make = make
        self.forget()
        _kinds.append(self)

    def get(self, using: str | None = None) -> S | None:
        return self._found.get(using or stream_settings().database)

    def obtain(self, using: str | None = None) -> S:
        """Returns the subscriber of that database.

        The first call starts the subscriber, and blocks until all positions are applied. Raises ``OperationalError`` if
        the database does not answer.
        """
        alias = using or stream_settings().database
        if (found := self._found.get(alias)) is not None:
            return found
        with self._guard:
            if (found := self._found.get(alias)) is not None:
                return found
            made = self._make(alias)
            made.prepare()
            with _guard:
                _running(alias).add(made)
            if made.watcher.is_away or not made.all_applied.wait(START_SECONDS):
                made.stop()
                raise driver.OperationalError(
                    f"Database {alias!r} does not answer, so nothing is known of what changed. Start it, and ask again."
                )
            self._found[alias] = made
            return made

    def stop(self) -> None:
        """Ends the subscribers of all databases. The next use starts new subscribers."""
        with self._guard:
            found = list(self._found.values())
            self._found.clear()
        for subscriber in found:
            subscriber.stop()

    def forget(self) -> None:
        """Forgets the subscribers of all databases in a forked child.

        Also makes a new lock, because a thread of the parent may have held the old one during the fork.
        """
        self._found: dict[str, S] = {}
        self._guard = threading.Lock()


def _running(using: str) -> PositionWatcher:
    watcher = _watchers.get(using)
    if watcher is None:
        watcher = PositionWatcher(using)
        watcher.start()
        _watchers[using] = watcher
    return watcher


def watcher_of(using: str | None = None) -> PositionWatcher | None:
    return _watchers.get(using or stream_settings().database)


def before_shown(found: Found, using: str | None = None) -> None:
    """Makes all subscribers apply everything up to these positions, before the caller shows or uses the positions.

    For code that received positions or read them from the table itself. Runs no query if the positions were applied
    already, or if there are no subscribers. May block.
    """
    # Without this: A reads position 7 from the table and returns fact 7 to its caller. The watcher has not received the
    # notification of 7 yet. A cached value that fact 7 invalidates would still be used.
    if (watcher := watcher_of(using)) is not None:
        watcher.before_shown(found)


def keeps_values(using: str | None = None) -> bool:
    """Returns true if this process holds data that new positions may make outdated, such as cached values.

    Such data outlives a crash of the server, so it follows the stored positions. No code of the process may then use positions
    that it looked up itself.
    """
    # Without this: a handler looks itself, and handles fact 7 before 7 is stored. A cached value that fact 7 invalidates would
    # still be used, because the cache feed reads facts up to stored positions only.
    watcher = watcher_of(using)
    return watcher is not None and watcher.keeps_values()


def _after_fork() -> None:
    # The threads and connections of watchers and subscribers belong to the parent.
    global _guard  # noqa: PLW0603
    _watchers.clear()
    _guard = threading.Lock()
    for kind in _kinds:
        kind.forget()


os.register_at_fork(after_in_child=_after_fork)
