"""Sends and receives notifications of moved positions.

A notification carries the stream, the writer and at most the writer's position, and possibly two one-time words that
prove its sender. It never carries facts, and it may be lost. So a listener also reads the table of positions after each
(re)connection, and from time to time.

Every role that may connect can send one. ``NotificationFilter`` accepts a position only from the session that holds its
writer's lock. Anything else means "look at the table", a bounded number of times (``streams.reading.trust``).
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
_MOST_DIGITS = 18  # a bigint holds every number of so many digits
#: Number of blanks in ``stream writer position``, and in the same with the two words that prove the sender.
_SPACES, _SPACES_WITH_WORDS = 2, 4


@dataclass(frozen=True, slots=True)
class PositionNotification:
    """A notification that a writer's position rose.

    Without a position, it means that the set of writers changed, so the table has to be read.
    """

    stream: str
    writer: str
    position: int | None

    @classmethod
    def parse(cls, payload: str) -> PositionNotification:
        """Returns the notification of a NOTIFY payload. A malformed payload gives one without a position ("read the table")."""
        parts = payload.split(" ", _SPACES_WITH_WORDS + 1)
        has_position = len(parts) - 1 in (_SPACES, _SPACES_WITH_WORDS)
        is_position = has_position and parts[2].isdecimal() and len(parts[2]) <= _MOST_DIGITS
        position = int(parts[2]) if is_position else None
        return cls(parts[0], parts[1] if len(parts) > 1 else "", position)


def notify_position(cursor: Any, stream: str, writer: str, position: int | None = None) -> None:
    """Notifies all listeners when the cursor's transaction commits. Without a position: the set of writers changed."""
    payload = f"{stream} {writer}" if position is None else f"{stream} {writer} {position}"
    cursor.execute("SELECT pg_notify(%s, %s)", [driver.channel(cursor, CHANNEL), payload])


class NotificationFilter:
    """A filter that turns notifications of any sender into those to act on; for one thread at a time.

    A position is passed on only if the session of its writer's lock sent it. The session is looked up after the
    notification was received. A notification that continues a proved one by its words
    (``streams.reading.trust.OneTimeWords``) needs no query. A stream with any other notification is passed on once,
    without writer and position ("read the table"), and none of its positions is.

    ``own`` is the session and the name of the caller, if it is a writer itself.
    """

    def __init__(self, own: tuple[int, str] | None = None) -> None:
        self.own = own
        self._sessions = WriterSessions()
        self._words = ReceivedWords()
        self._look_due = 0.0
        self._waiting: set[str] = set()

    def forget(self) -> None:
        """Discards everything received so far, because the caller reads all tables."""
        self._waiting = set()
        self._words = ReceivedWords()

    def queue_again(self, streams: set[str]) -> None:
        """Queues these streams again, because the caller could not read them."""
        self._waiting |= streams

    @property
    def due_seconds(self) -> float | None:
        """Returns the seconds until a waiting stream can be passed on, even if nothing is received; None if none waits."""
        return max(0.0, self._look_due - time.monotonic()) if self._waiting else None

    def judge(self, heard: Sequence[tuple[int, str]], cursor: Cursor) -> list[PositionNotification]:
        """Returns the notifications to act on, from (session, payload) pairs in the order of arrival.

        Drops those of streams that this program does not know. Raises the driver's errors of a lost connection.
        """
        now = time.monotonic()
        is_due = now >= self._look_due
        proved = [self._proved(*one) for one in heard]
        # One query for all that are not proved by words, and at most one in LOOK_GAP_SECONDS.
        if is_due and any(
            found is None and self._may_be_proved(*one) for found, one in zip(proved, heard, strict=True)
        ):
            self._sessions.look(cursor)
            self._words.keep(self._sessions.speaks_for)
            proved = [found or self._vouched_for(*one) for found, one in zip(proved, heard, strict=True)]
        others = {payload.partition(" ")[0] for found, (_, payload) in zip(proved, heard, strict=True) if found is None}
        unclear = self._waiting | {stream for stream in others if lookup.find(stream) is not None}
        # A stream with an unproved notification is passed on without any position. Otherwise: A enters the stream at 5 and takes
        # 6; its notification cannot be proved yet. B announces 7, proved. With B's alone the linear position would pass 6.
        given = [found for found in proved if found is not None and found.stream not in unclear]
        if not unclear or not is_due:
            self._waiting = unclear
            return given
        self._look_due, self._waiting = now + LOOK_GAP_SECONDS, set()
        return [PositionNotification(stream, "", None) for stream in sorted(unclear)] + given

    def _proved(self, session: int, payload: str) -> PositionNotification | None:
        """Returns the notification if its sender is known without a query, else null.

        Words of sessions that belong to no writer are not even parsed. A client that sends 100,000 notifications a second
        must not keep this thread busy.
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
        """Returns the notification if its session holds its writer's lock, else null.

        Called after a query that was made after the notification was received.
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
        """Returns true if the payload looks like a position of another writer than the caller."""
        if payload.count(" ") not in (_SPACES, _SPACES_WITH_WORDS) or lookup.find(payload.partition(" ")[0]) is None:
            return False
        return self.own is None or session != self.own[0] or payload.split(" ", 2)[1] != self.own[1]


def _words_of(payload: str) -> str:
    """Returns the part of the payload after the position."""
    return payload.split(" ", 3)[3] if payload.count(" ") == _SPACES_WITH_WORDS else ""


class PositionListener(NotifyListener[PositionNotification]):
    """A listener that calls ``on_notifications`` with accepted notifications.

    After each (re)connection it calls it with an empty list ("read the table").
    """

    def __init__(
        self,
        on_notifications: Callable[[list[PositionNotification]], None],
        using: str | None = None,
        name: str = "reader",
    ) -> None:
        super().__init__(CHANNEL, on_notifications, using, f"notifications {name}")
        self._judge = NotificationFilter()

    def take(self, heard: Sequence[tuple[int, str]]) -> list[PositionNotification]:
        """Returns proved notifications, and those without a position for streams that have to be looked up."""
        return self._judge.judge(heard, self._connection.cursor)

    def due_seconds(self) -> float | None:
        """Returns the seconds until a stream that waits can be looked up; None if none waits."""
        return self._judge.due_seconds

    def connected(self) -> None:
        """Discards what was received before, because everything is about to be looked up."""
        self._judge.forget()
