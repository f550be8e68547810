"""Stored positions, as the last read of their table and the notifications since then give them.

A notification with a position was sent by the session of its writer's lock
(``streams.reading.position_notifications.NotificationFilter``), in the commit that stores the position. So the position of
a known writer need not be read again, which saves a round trip between a commit and its followers.

In all other cases the table is read: after a notification without a position, of an unknown or retired writer, or below
the known position. It is also read after each notification of a stream whose generation may change, because a late one
could be of the last generation.

Notifications must be applied in commit order, without gaps. A caller that may have lost one calls ``forget``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from streams.core.positions import RETIRED
from streams.reading.position_notifications import PositionNotification
from streams.reading.rows import StoredPosition

__all__ = ["PositionCache"]


class PositionCache:
    """The known positions of all streams; for one thread at a time.

    ``may_begin_anew(stream)`` returns true if the stream's generation may change.
    """

    def __init__(self, may_begin_anew: Callable[[str], bool] = lambda _: False) -> None:
        self._may_begin_anew = may_begin_anew
        self._known: dict[str, dict[str, StoredPosition]] = {}

    @property
    def known(self) -> Mapping[str, Mapping[str, StoredPosition]]:
        """Returns the known positions, as ``{stream: {writer: position}}``."""
        return self._known

    def forget(self) -> None:
        """Discards all positions, because a notification may be lost or a read has failed."""
        self._known = {}

    def looked(self, found: Mapping[str, dict[str, StoredPosition]], only: Collection[str] | None) -> None:
        """Stores positions read from the table, of all streams or of those in ``only``."""
        if only is None:
            self._known = dict(found)
        else:
            self._known.update({stream: found.get(stream, {}) for stream in only})

    def hear(self, notifications: Iterable[PositionNotification], wanted: Collection[str] = ()) -> set[str]:
        """Applies notifications, and returns the streams that have to be read from the table nevertheless.

        Streams in ``wanted`` that are not known are among them.
        """
        unclear = set(wanted) - self._known.keys()
        # In commit order, without gaps. Otherwise: a writer returns at 5, another one commits 6. If the second notification came
        # first, followers would have received that the returning writer has no facts up to 6.
        for notification in notifications:
            known = self._known.get(notification.stream, {}).get(notification.writer)
            is_told = known is not None and known.state != RETIRED and not self._may_begin_anew(notification.stream)
            if known is None or not is_told or notification.position is None or notification.position < known.position:
                unclear.add(notification.stream)
            else:
                self._known[notification.stream][notification.writer] = replace(known, position=notification.position)
        return unclear

    def of(self, streams: Collection[str]) -> dict[str, dict[str, StoredPosition]]:
        """Returns the known positions of these streams; an empty dict for an unknown one."""
        return {stream: self._known.get(stream, {}) for stream in streams}
