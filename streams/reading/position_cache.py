"""A cache of the stored positions. It holds what was last read from the table, updated by the notifications since then.

A notification with a position comes from the session that holds the writer's lock
(``streams.reading.position_notifications.NotificationFilter``), and is sent by the commit that stores the position. So
after such a notification the table need not be read, which saves a round trip between a commit and its followers.

In all other cases the table is read: after a notification without a position, of an unknown or retired writer, or below
the known position. The table is also read after each notification of a stream whose generation may change, because a late
notification could be of the previous generation.

Notifications must be applied in commit order, without gaps. If a notification may be lost, call ``forget``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from streams.core.positions import RETIRED
from streams.reading.position_notifications import PositionNotification
from streams.reading.rows import StoredPosition

__all__ = ["PositionCache"]


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

    def hear(self, notifications: Iterable[PositionNotification], wanted: Collection[str] = ()) -> set[str]:
        """Applies notifications. Returns the streams whose positions must still be read from the table.

        These include the streams in ``wanted`` whose positions are not known.
        """
        unclear = set(wanted) - self._known.keys()
        # Notifications are applied in commit order, without gaps. Otherwise: A returns at position 5, and B commits 6. If B's
        # notification were applied first, followers would learn that A has no facts up to 6.
        for notification in notifications:
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
