"""A cache of the stored positions.

The cache holds the positions that were last read from the table, updated by the notifications since then.

A notification with a position is sent by the commit that stores the position. The notification is accepted only from
the session that holds the writer's lock (``streams.reading.position_notifications.NotificationFilter``). So after such
a notification the table need not be read, which saves a round trip between a commit and its followers.

In all other cases the table is read: after a notification without a position, of an unknown or retired writer, or below
the known position. The table is also read after each notification of a stream whose generation may change. A late
notification could be of the previous generation.

Notifications must be applied in commit order, without gaps. If a notification may be lost, call ``forget``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from streams.core.positions import RETIRED
from streams.reading.position_notifications import PositionNotification
from streams.reading.rows import StoredPosition

__all__ = ["MOST_WAITING", "NotificationQueue", "PositionCache"]

#: Most notifications that wait in a queue. If there are more, the table is read instead.
MOST_WAITING = 10_000


class NotificationQueue:
    """A queue of notifications. The listener's thread calls ``put``, and a reading thread calls ``take``."""

    def __init__(self) -> None:
        self._waiting: list[PositionNotification | None] = []
        self._guard = threading.Lock()

    def put(self, notifications: Sequence[PositionNotification]) -> None:
        """Adds notifications. An empty list means that notifications may be lost."""
        with self._guard:
            if notifications and len(self._waiting) + len(notifications) <= MOST_WAITING:
                self._waiting.extend(notifications)
            else:
                self._waiting = [None]

    def take(self) -> list[PositionNotification | None]:
        """Removes the waiting notifications, and returns them in order.

        A None in the list means that notifications may be lost.

        Must be called before the table is read. The table is then newer than all returned notifications.
        """
        with self._guard:
            taken, self._waiting = self._waiting, []
        return taken


class PositionCache:
    """The known positions of all streams. Only one thread at a time may use it.

    ``may_begin_anew(stream)`` returns true if the stream may restart at 0 in a new generation.
    """

    def __init__(self, may_begin_anew: Callable[[str], bool] = lambda _: False) -> None:
        self._may_begin_anew = may_begin_anew
        self._known: dict[str, dict[str, StoredPosition]] = {}

    @property
    def known(self) -> Mapping[str, Mapping[str, StoredPosition]]:
        """The known positions, as ``{stream: {writer: position}}``."""
        return self._known

    def forget(self) -> None:
        """Discards all positions, because a notification may be lost or a read has failed."""
        self._known = {}

    def looked(self, found: Mapping[str, dict[str, StoredPosition]], only: Collection[str] | None) -> None:
        """Stores positions that were read from the table.

        ``found`` has the positions of the streams in ``only``, or of all streams if ``only`` is None.
        """
        if only is None:
            self._known = dict(found)
        else:
            self._known.update({stream: found.get(stream, {}) for stream in only})

    def hear(self, notifications: Iterable[PositionNotification | None], wanted: Collection[str] = ()) -> set[str]:
        """Applies notifications. Returns the streams whose positions must still be read from the table.

        These streams include the streams in ``wanted`` whose positions are not known. A None among the notifications
        means that notifications may be lost. Then all positions are discarded.
        """
        heard = list(notifications)
        if None in heard:
            self.forget()
        unclear = set(wanted) - self._known.keys()
        # Notifications are applied in commit order, without gaps. Otherwise: A returns at position 5, and B commits 6. If B's
        # notification were applied first, followers would learn that A has no facts up to 6.
        for notification in heard:
            if notification is None:
                continue
            known = self._known.get(notification.stream, {}).get(notification.writer)
            is_told = known is not None and known.state != RETIRED and not self._may_begin_anew(notification.stream)
            if known is None or not is_told or notification.position is None or notification.position < known.position:
                unclear.add(notification.stream)
            else:
                self._known[notification.stream][notification.writer] = replace(known, position=notification.position)
        return unclear

    def of(self, streams: Collection[str]) -> dict[str, dict[str, StoredPosition]]:
        """Returns the known positions of these streams. The value for an unknown stream is an empty dictionary."""
        return {stream: self._known.get(stream, {}) for stream in streams}
