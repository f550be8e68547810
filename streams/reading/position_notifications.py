"""Sends and receives notifications of positions that have risen.

A notification contains the stream and the writer. It may also contain the writer's position, and two one-time secrets
that prove who sent the notification (``streams.reading.trust``). It contains no facts, and it may be lost. So a
listener also reads the table of positions after each (re)connection, and from time to time.

Every role that may connect can send a notification. ``NotificationFilter`` accepts a position only from the session that
holds the writer's lock. Any other notification only causes a read of the table, and such reads are limited in number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from streams.core import lookup
from streams.db import driver
from streams.reading.notify import NotifyListener
from streams.reading.trust import LOOK_GAP_SECONDS, Cursor, ReceivedWords, WriterSessions

__all__ = ["CHANNEL", "NotificationFilter", "PositionListener", "PositionNotification", "notify_position"]

CHANNEL = "replsite_streams"
#: While notifications wait in the server's queue, the table is read this often. So a flood delays no position for longer.
BEHIND_LOOK_SECONDS = 0.1
_MOST_DIGITS = 18  # a bigint can hold every number with this many digits
#: Number of blanks in ``stream writer position``, and in the same text followed by the two words that prove the sender.
_SPACES, _SPACES_WITH_WORDS = 2, 4


@dataclass(frozen=True, slots=True)
class PositionNotification:
    """A notification that a writer's position rose. If ``position`` is None, the table of positions must be read.

    ``position`` is None, for instance, when a writer enters or leaves the stream.
    """

    stream: str
    writer: str
    position: int | None

    @classmethod
    def parse(cls, payload: str) -> PositionNotification:
        """Parses the payload of a NOTIFY. From a malformed payload, returns a notification without a position."""
        parts = payload.split(" ", _SPACES_WITH_WORDS + 1)
        has_position = len(parts) - 1 in (_SPACES, _SPACES_WITH_WORDS)
        is_position = has_position and parts[2].isdecimal() and len(parts[2]) <= _MOST_DIGITS
        position = int(parts[2]) if is_position else None
        return cls(parts[0], parts[1] if len(parts) > 1 else "", position)


def notify_position(cursor: Any, stream: str, writer: str, position: int | None = None) -> None:
    """Sends a notification to all listeners when the cursor's transaction commits.

    If the stream's writers have changed, ``position`` must be None. The listeners then read the table of positions.
    """
    payload = f"{stream} {writer}" if position is None else f"{stream} {writer} {position}"
    cursor.execute("SELECT pg_notify(%s, %s)", [driver.channel(cursor, CHANNEL), payload])


class NotificationFilter:
    """A filter that returns the notifications on which the caller may act.

    Every role that may connect can send notifications.

    A position is returned only if it was sent by the session that holds the writer's lock. The sender is proved by a
    query made after the notification arrived, or by a secret that matches an earlier proved notification
    (``streams.reading.trust.OneTimeWords``). If any other notification names a stream, no position of that stream is
    returned. Instead, one notification of the stream without writer and position is returned, so that the caller reads
    the table.

    ``own`` is the session and the name of the caller, if the caller is a writer itself. Only one thread at a time may use
    the filter.
    """

    def __init__(self, own: tuple[int, str] | None = None) -> None:
        self.own = own
        self._sessions = WriterSessions()
        self._words = ReceivedWords()
        self._look_due = 0.0
        self._waiting: set[str] = set()

    def forget(self) -> None:
        """Discards all notifications received so far, because the caller is going to read all positions from the table."""
        self._waiting = set()
        self._words = ReceivedWords()

    def queue_again(self, streams: set[str]) -> None:
        """Makes ``judge`` return these streams, because their positions must be read from the table."""
        self._waiting |= streams

    @property
    def due_seconds(self) -> float | None:
        """The seconds until ``judge`` will return the streams that wait to be read from the table. None if none waits.

        The caller must then call ``judge``, even if nothing was received.
        """
        return max(0.0, self._look_due - time.monotonic()) if self._waiting else None

    def judge(self, heard: Sequence[tuple[int, str]], cursor: Cursor) -> list[PositionNotification]:
        """Returns the notifications to act on. ``heard`` are pairs (session, payload) in the order of arrival.

        A returned notification without a position means that the stream's positions must be read from the table. Drops
        notifications of streams that this program does not know.

        If the caller is a writer, ``cursor`` belongs to the writer's control connection. If this connection is lost,
        the driver's errors are raised. The connection of any other caller is opened again later. Until then no
        notification can be proved to come from the writer that it names, so it is returned without a position.
        """
        now = time.monotonic()
        is_due = now >= self._look_due
        proved = [self._proved(*one) for one in heard]
        # One query examines all notifications that no secret proves. There is at most one query in LOOK_GAP_SECONDS.
        if is_due and any(
            found is None and self._may_be_proved(*one) for found, one in zip(proved, heard, strict=True)
        ):
            self._look_for_sessions(cursor)
            self._words.keep(self._sessions.speaks_for)
            proved = [found or self._vouched_for(*one) for found, one in zip(proved, heard, strict=True)]
        others = {payload.partition(" ")[0] for found, (_, payload) in zip(proved, heard, strict=True) if found is None}
        unclear = self._waiting | {stream for stream in others if lookup.find(stream) is not None}
        # If a stream has an unproved notification, none of its positions is returned. Otherwise: A enters the stream at 5 and
        # takes 6, and A's notification cannot be proved yet. B's notification of 7 is proved. With B's position alone, the linear
        # position would pass 6.
        given = [found for found in proved if found is not None and found.stream not in unclear]
        if not unclear or not is_due:
            self._waiting = unclear
            return given
        self._look_due, self._waiting = now + LOOK_GAP_SECONDS, set()
        return [PositionNotification(stream, "", None) for stream in sorted(unclear)] + given

    def _look_for_sessions(self, cursor: Cursor) -> None:
        try:
            self._sessions.look(cursor)
        except driver.connection_gone:
            if self.own is not None:
                raise

    def _proved(self, session: int, payload: str) -> PositionNotification | None:
        """Returns the notification if its sender can be proved without a query, else None.

        The payload is not even parsed if the session belongs to no writer. So a client that sends 100,000 notifications
        a second does not keep this thread busy.
        """
        is_own = self.own is not None and session == self.own[0]
        if not is_own and not self._sessions.is_writers(session):
            return None
        found = PositionNotification.parse(payload)
        if found.position is None or lookup.find(found.stream) is None:
            return None
        if (session, found.writer) == self.own:
            return found
        return found if self._words.follow((session, found.writer, found.stream), _words_of(payload)) else None

    def _vouched_for(self, session: int, payload: str) -> PositionNotification | None:
        """Returns the notification if the session that sent it holds the writer's lock, else None.

        Uses the result of the last query, which must have been made after the notification was received.
        """
        if not self._sessions.is_writers(session):
            return None
        found = PositionNotification.parse(payload)
        if found.position is None or lookup.find(found.stream) is None:
            return None
        if not self._sessions.speaks_for(session, found.writer):
            return None
        self._words.begin((session, found.writer, found.stream), _words_of(payload))
        return found

    def _may_be_proved(self, session: int, payload: str) -> bool:
        """Returns true if the payload has the form of a position on a known stream, and was not sent by the caller itself."""
        if payload.count(" ") not in (_SPACES, _SPACES_WITH_WORDS) or lookup.find(payload.partition(" ")[0]) is None:
            return False
        return self.own is None or session != self.own[0] or payload.split(" ", 2)[1] != self.own[1]


def _words_of(payload: str) -> str:
    """Returns the one-time secrets ``WORD DIGEST`` at the end of a payload, or an empty text if the payload has no secrets."""
    return payload.split(" ", 3)[3] if payload.count(" ") == _SPACES_WITH_WORDS else ""


class PositionListener(NotifyListener[PositionNotification]):
    """A listener that calls ``on_notifications`` with the notifications that its filter accepts.

    After each (re)connection the listener passes an empty list. Then the callback must read all positions from the
    table.
    """

    def __init__(
        self,
        on_notifications: Callable[[list[PositionNotification]], None],
        using: str | None = None,
        name: str = "reader",
    ) -> None:
        super().__init__(CHANNEL, on_notifications, using, f"notifications {name}")
        self._filter = NotificationFilter()
        self._behind_due = 0.0

    def take(self, heard: Sequence[tuple[int, str]]) -> list[PositionNotification]:
        """Returns the proved notifications.

        Also returns a notification without a position for each stream whose positions must be read from the table.
        """
        return self.judge(heard, must_look=self.must_look())

    def judge(self, heard: Sequence[tuple[int, str]], *, must_look: bool) -> list[PositionNotification]:
        """Returns the same as ``take``. If ``must_look`` is true, all streams are to be read from the table."""
        if must_look:
            self._filter.queue_again(set(lookup.names()))
        return self._filter.judge(heard, self.asking)

    def must_look(self) -> bool:
        """Returns true if all positions must be read from the table, because notifications come late.

        While the listener is behind, returns true once in ``BEHIND_LOOK_SECONDS``.
        """
        # Example: a role sends 120,000 notifications of 7.9 kB, and A then announces 7. The notification of 7 arrives seconds
        # later, but the table has 7 now.
        now = time.monotonic()
        if not self.is_behind or now < self._behind_due:
            return False
        self._behind_due = now + BEHIND_LOOK_SECONDS
        return True

    def due_seconds(self) -> float | None:
        """Returns the seconds until waiting streams may be read from the table, or None if no stream waits."""
        return self._filter.due_seconds

    def connected(self) -> None:
        """Discards all notifications received before, because all positions are about to be read from the table."""
        self._filter.forget()
