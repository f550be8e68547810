"""Receives the positions of a database once for a whole process, and has each part of the process apply them in order.

There is one *watcher* for each process and database alias, from the first subscriber to the last. It has a thread that
listens, and a connection on which rows are read. It knows the positions, the epoch and the generations. Subscribers are
the cached values, the notifier, and callers that wait.

A position must not show in this process before each subscriber has applied it. So a batch of notifications has two phases:
``before`` of all subscribers, then ``shown`` of all. Code that has a position from elsewhere calls ``before_shown``: the
control loop, followers, and everything that reads the table of positions.

After a lost connection or an error, subscribers are called with all positions of the table. A forked child has no watcher.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from streams import epochs
from streams.conf import stream_settings
from streams.core import lookup
from streams.db import driver
from streams.reading.position_cache import PositionCache
from streams.reading.position_notifications import PositionListener, PositionNotification
from streams.reading.possible_positions import possible_positions
from streams.reading.rows import StoredPosition

__all__ = [
    "Found",
    "NotifiedPosition",
    "Positions",
    "Rank",
    "Subscriber",
    "Subscriptions",
    "before_shown",
    "watcher_of",
]

START_SECONDS = 10.0
#: Stream -> writer -> stored position.
Found = Mapping[str, Mapping[str, StoredPosition]]


class NotifiedPosition(NamedTuple):
    """A position as a notification gives it, which has no generation."""

    position: int
    generation: None = None


#: Stream -> writer -> position.
Positions = Mapping[str, Mapping[str, StoredPosition | NotifiedPosition]]


class Rank(IntEnum):
    """The order in which subscribers are called. One that shows positions or wakes callers comes after the caches."""

    CACHES, NOTIFIER, WAITERS = range(3)


class Subscriber:
    """A part of this process that follows the positions of one database. All methods are called by the watcher."""

    rank: ClassVar[Rank]
    watcher: PositionWatcher
    is_hearing = False
    """True while everything received was applied."""

    def __init__(self, using: str) -> None:
        self.using = using
        #: Set once all positions were applied for the first time.
        self.begun = threading.Event()

    def prepare(self) -> None:
        """Does slow work before the first call of ``before``, in the caller's thread. May raise."""

    def before(self, cursor: Any, found: Found, *, everything: bool) -> None:
        """Applies the facts up to these positions, before any of them shows in this process.

        ``everything``: these are the positions of all streams, the first ones or those after an error. Called by one thread
        at a time. May raise: the subscriber is then ``lost``, and called again soon.
        """

    def shown(self, found: Found) -> None:
        """Shows the positions. All subscribers have applied them."""

    def own_moved(self) -> None:
        """Reacts to facts of this process that became complete, in the thread that learned it. Must be quick."""

    def nudged(self) -> None:
        """Reacts to ``PositionWatcher.nudge``, in the watcher's thread."""

    def lost(self, error: BaseException | None) -> None:
        """Reacts to the loss of the connection, or to an error. Whatever is served from now on must not need notifications."""

    def restored(self) -> None:
        """Discards positions and what was derived from facts: the database may give out IDs again that were applied."""

    def stop(self) -> None:
        """Ends the following. Not called by the watcher's thread."""
        _unsubscribe(self)


class PositionWatcher(PositionListener):
    """The thread, the connections and the known positions of one database in this process."""

    def __init__(self, using: str) -> None:
        super().__init__(self.heard, using, "positions")
        self.is_away = False
        #: Held while facts are applied, so that each position is applied once and in order.
        self._applying = threading.RLock()
        self._connection_for_rows = driver.KeptConnection(using, "replsite positions", reads_in_order=True)
        self._known = PositionCache(_may_begin_anew)
        self._epoch = ""
        self._is_behind = True
        self._subscribers: tuple[Subscriber, ...] = ()

    # --- subscribers ----------------------------------------------------------------------------------------------

    def add(self, subscriber: Subscriber) -> None:
        """Adds a subscriber, which is called with all positions soon."""
        subscriber.watcher = self
        with self._applying:
            self._subscribers = tuple(sorted([*self._subscribers, subscriber], key=lambda one: one.rank))
            self.look_again()

    def remove(self, subscriber: Subscriber) -> bool:
        """Removes a subscriber. It applies nothing after that. Returns true if there are others."""
        with self._applying:
            self._subscribers = tuple(one for one in self._subscribers if one is not subscriber)
            return bool(self._subscribers)

    def look_again(self) -> None:
        """Has all subscribers called with all positions soon."""
        self._is_behind = True
        self.nudge()

    def known(self, stream: str) -> Mapping[str, StoredPosition]:
        """Returns the known positions of a stream by writer. Subscribers of a lower rank have applied them."""
        return self._known.known.get(stream, {})

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """Yields a cursor for facts to apply. Nothing else is applied meanwhile."""
        with self._applying, self._connection_for_rows.cursor() as cursor:
            yield cursor

    def close(self) -> None:
        """Ends the thread and closes the connections."""
        self.stop()
        with self._applying:
            self._connection_for_rows.close()

    # --- positions that others are about to show ------------------------------------------------------------------

    def before_shown(self, found: Positions) -> None:
        """Has everything up to these positions applied. Most are known, so they were applied before."""
        if self._applies():
            with self._applying:
                if behind := {stream for stream, stored in found.items() if not self._is_known(stream, stored)}:
                    self.catch_up(behind)

    def catch_up(self, streams: Collection[str] | None = None) -> None:
        """Has everything applied that is stored of these streams (None: of all).

        Errors are not raised: the subscribers are ``lost``, and called again later.
        """
        if self._applies():
            with self._applying:
                error = self._apply(lambda cursor: self._look(cursor, streams))[1]
            if error is not None:
                self.nudge()

    def _applies(self) -> bool:
        """Returns true if a subscriber keeps what positions make outdated."""
        return any(one.is_hearing and one.rank < Rank.WAITERS for one in self._subscribers)

    def _is_known(self, stream: str, stored: Mapping[str, StoredPosition | NotifiedPosition]) -> bool:
        known, may_begin_anew = self.known(stream), _may_begin_anew(stream)
        for writer, at in stored.items():
            here = known.get(writer)
            if here is None or at.position > here.position:
                return False
            if may_begin_anew and at.generation != here.generation:  # 5 may be the last generation's or the next one's
                return False
        return True

    def own_moved(self) -> None:
        """Reacts to facts of this process that became complete."""
        for one in self._subscribers:
            one.own_moved()

    # --- what is received -----------------------------------------------------------------------------------------

    def heard(self, notifications: Sequence[PositionNotification]) -> None:
        """Applies and shows what these notifications announce. An empty list means: everything in the table."""
        with self._applying:
            everything = self._is_behind or not notifications
            found, error = self._apply(
                self._look_at_everything if everything else lambda cursor: self._take_over(cursor, notifications),
                everything=everything,
            )
        for one in self._subscribers:
            one.shown(found)
        if error is not None:
            raise error  # the listener logs it, and calls again with an empty list

    def connected(self) -> None:
        """Reacts to a new connection that listens."""
        super().connected()
        self.is_away = False

    def lost(self) -> None:
        """Reacts to the loss of the connection."""
        self.is_away = True
        self._lose(self._subscribers, None)

    def nudged(self) -> None:
        """Reacts to ``nudge``, in the listener's thread."""
        if self._is_behind:
            self.heard([])
        for one in self._subscribers:
            one.nudged()

    # --- apply, with ``_applying`` held ---------------------------------------------------------------------------

    def _apply(self, find: Callable[[Any], Found], *, everything: bool = False) -> tuple[Found, Exception | None]:
        """Has all subscribers apply the positions that ``find`` returns. Returns these, and the error of one that failed."""
        try:
            with self.cursor() as cursor:
                found = find(cursor)
        except Exception as error:  # noqa: BLE001 - the caller decides
            self._lose(self._subscribers, error)
            return {}, error
        if everything:
            self._is_behind = False  # before the calls: each may ask for another look
        failed: Exception | None = None
        for one in self._subscribers:
            try:
                with self.cursor() as cursor:  # of its own, so that an error of one does not concern the others
                    one.before(cursor, found, everything=everything)
            except Exception as error:  # noqa: BLE001 - the caller decides
                self._lose([one], error)
                failed = error
            else:
                if everything:
                    one.is_hearing = True  # last: no value may be kept before everything was applied
                    one.begun.set()
        return found, failed

    def _lose(self, subscribers: Iterable[Subscriber], error: BaseException | None) -> None:
        self._is_behind = True
        for one in subscribers:
            one.is_hearing = False
            one.lost(error)

    def _look_at_everything(self, cursor: Any) -> Found:
        """Reads all positions, and the epoch: the database may have been restored while the connection was lost."""
        found = epochs.readable_epoch(cursor)
        if epochs.epoch_changed(self._epoch, found):
            self._known.forget()
            self._restored()
        self._epoch = found
        return self._look(cursor, None)

    def _restored(self) -> None:
        for one in self._subscribers:
            one.restored()
        self.look_again()

    def _take_over(self, cursor: Any, notifications: Sequence[PositionNotification]) -> Found:
        streams = {notification.stream for notification in notifications}
        # Another thread has read 7 from the table, and only now comes the notification of 6: it says nothing new.
        news = [notification for notification in notifications if not self._is_below(notification)]
        if unclear := self._known.hear(news, streams):
            self._look(cursor, unclear)
        return self._known.of(streams)

    def _look(self, cursor: Any, streams: Collection[str] | None) -> Found:
        found = possible_positions(cursor, None if streams is None else sorted(streams), self._known.known)
        if any(self._is_below(at) for stored in found.values() for at in stored.values()):
            self._restored()  # a restore in which the connection was not lost, or a repair
        self._known.looked(found, streams)
        return found

    def _is_below(self, at: PositionNotification | StoredPosition) -> bool:
        """Returns true for a position below the known one, except of a stream that may begin again at 0."""
        known = self.known(at.stream).get(at.writer)
        if known is None or at.position is None or _may_begin_anew(at.stream):
            return False
        return at.position < known.position


def _may_begin_anew(stream: str) -> bool:
    found = lookup.find(stream)
    return found is None or found.declaration.in_memory


# --- one watcher per database ---------------------------------------------------------------------------------------

S = TypeVar("S", bound=Subscriber)
_watchers: dict[str, PositionWatcher] = {}
_guard = threading.Lock()
_kinds: list[Subscriptions[Any]] = []


class Subscriptions(Generic[S]):
    """The subscribers of one kind: one for each database alias, made when it is first needed."""

    def __init__(self, make: Callable[[str], S]) -> None:
        self._make = make
        self.forget()
        _kinds.append(self)

    def get(self, using: str | None = None) -> S | None:
        """Returns the subscriber of that database, or None if none has begun."""
        return self._found.get(using or stream_settings().database)

    def obtain(self, using: str | None = None) -> S:
        """Returns the subscriber of that database. The first call starts it, and blocks until it has applied all positions.

        Raises ``OperationalError`` if the database does not answer.
        """
        alias = using or stream_settings().database
        if (found := self._found.get(alias)) is not None:
            return found
        with self._guard:
            if (found := self._found.get(alias)) is not None:
                return found
            made = self._make(alias)
            made.prepare()
            _subscribe(made)
            if made.watcher.is_away or not made.begun.wait(START_SECONDS):
                made.stop()
                raise driver.OperationalError(
                    f"Database {alias!r} does not answer, so nothing is known of what changed. Start it, and ask again."
                )
            self._found[alias] = made
            return made

    def stop(self) -> None:
        """Ends all of them. The next use starts new ones."""
        with self._guard:
            found = list(self._found.values())
            self._found.clear()
        for one in found:
            one.stop()

    def forget(self) -> None:
        """Begins without any, in a forked child: a thread of the parent may have held the lock during the fork."""
        self._found: dict[str, S] = {}
        self._guard = threading.Lock()


def _subscribe(subscriber: Subscriber) -> None:
    with _guard:
        watcher = _watchers.get(subscriber.using)
        if watcher is None:
            watcher = PositionWatcher(subscriber.using)
            watcher.start()
            _watchers[subscriber.using] = watcher
        watcher.add(subscriber)


def _unsubscribe(subscriber: Subscriber) -> None:
    with _guard:
        watcher = _watchers.get(subscriber.using)
        if watcher is None or watcher.remove(subscriber):
            return
        del _watchers[subscriber.using]
    watcher.close()


def watcher_of(using: str | None = None) -> PositionWatcher | None:
    """Returns the watcher of that database, or None if there is no subscriber."""
    return _watchers.get(using or stream_settings().database)


def before_shown(found: Positions, using: str | None = None) -> None:
    """Has this process apply everything up to these positions, before the caller shows or uses them.

    Called with positions that were received or read from their table. Runs no query if they were applied already, or if
    there is no subscriber. May block.
    """
    # Without this: A reads position 7 from the table and hands out fact 7. The watcher has not received the notification of 7
    # yet. A cached value that fact 7 invalidates would still be served.
    if (watcher := watcher_of(using)) is not None:
        watcher.before_shown(found)


def _after_fork() -> None:
    """Begins without watchers and subscribers in a child. The parent's threads and connections are left to the parent."""
    global _guard  # noqa: PLW0603
    _watchers.clear()
    _guard = threading.Lock()
    for kind in _kinds:
        kind.forget()


os.register_at_fork(after_in_child=_after_fork)
