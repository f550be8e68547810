"""Sends and receives notifications of moved positions.

A notification has ``stream writer position`` at most, and two one-time words that prove its sender. It never carries
facts, and it may be lost. So a listener also reads the table of positions after each (re)connection, and from time to
time.

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
_MOST_DIGITS = 18  # a bigint holds each such number
#: Blanks in ``stream writer position``, and with words behind it that prove whose it is.
_SPACES, _SPACES_WITH_WORDS = 2, 4


@dataclass(frozen=True, slots=True)
class PositionNotification:
    """A writer's position rose; without a position: the set of writers changed, look at the table."""

    stream: str
    writer: str
    position: int | None

    @classmethod
    def parse(cls, payload: str) -> PositionNotification:
        """Read a NOTIFY payload; anything odd means "look at the table"."""
        parts = payload.split(" ", _SPACES_WITH_WORDS + 1)
        has_position = len(parts) - 1 in (_SPACES, _SPACES_WITH_WORDS)
        is_position = has_position and parts[2].isdecimal() and len(parts[2]) <= _MOST_DIGITS
        position = int(parts[2]) if is_position else None
        return cls(parts[0], parts[1] if len(parts) > 1 else "", position)


def notify_position(cursor: Any, stream: str, writer: str, position: int | None = None) -> None:
    """Tell everybody, once the cursor's transaction is committed; without a position: the set of writers changed."""
    payload = f"{stream} {writer}" if position is None else f"{stream} {writer} {position}"
    cursor.execute("SELECT pg_notify(%s, %s)", [driver.channel(cursor, CHANNEL), payload])


class NotificationFilter:
    """What notifications tell, whoever sent them; for one thread at a time.

    Positions that are handed out were said by the session of their writer's lock. It is looked up after they were heard; those
    that go on from such a one by their words (``streams.reading.trust.OneTimeWords``) need no question. A stream of which
    something else was said is handed out once, without writer and position, and nothing else of it. A enters the stream at 5
    and takes 6, B says 7: taken over without A's word, which could not be proved yet, B's would have the linear position pass
    6. ``own`` is the session and the name of the caller, if it is a writer itself.
    """

    def __init__(self, own: tuple[int, str] | None = None) -> None:
        self.own = own
        self._sessions = WriterSessions()
        self._words = ReceivedWords()
        self._look_due = 0.0
        self._waiting: set[str] = set()

    def forget(self) -> None:
        """The caller looks at everything: nothing that was heard so far has to be looked up any more."""
        self._waiting = set()
        self._words = ReceivedWords()

    def look_again(self, streams: set[str]) -> None:
        """The caller could not look at these streams."""
        self._waiting |= streams

    @property
    def due_seconds(self) -> float | None:
        """When there is something to hand out though nothing is heard; None: never."""
        return max(0.0, self._look_due - time.monotonic()) if self._waiting else None

    def judge(self, heard: Sequence[tuple[int, str]], cursor: Cursor) -> list[PositionNotification]:
        """Returns the notifications to act on, from (session, payload) pairs in the order of arrival.

        Drops those of streams that this program does not know. Raises the driver's errors of a lost connection.
        """
        now = time.monotonic()
        is_due = now >= self._look_due
        proved = [self._proved(*one) for one in heard]
        if is_due and any(
            found is None and self._may_be_proved(*one) for found, one in zip(proved, heard, strict=True)
        ):
            self._sessions.look(cursor)
            self._words.keep(self._sessions.speaks_for)
            proved = [found or self._vouched_for(*one) for found, one in zip(proved, heard, strict=True)]
        others = {payload.partition(" ")[0] for found, (_, payload) in zip(proved, heard, strict=True) if found is None}
        unclear = self._waiting | {stream for stream in others if lookup.find(stream) is not None}
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
        """Returns the notification if its session belonged to its writer in a query made after it was received, else null."""
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
    """Calls ``on_pokes`` with received notifications, and with an empty list after each (re)connection ("read the table")."""

    def __init__(
        self, on_pokes: Callable[[list[PositionNotification]], None], using: str | None = None, name: str = "reader"
    ) -> None:
        super().__init__(CHANNEL, on_pokes, using, f"pokes {name}")
        self._judge = NotificationFilter()

    def take(self, heard: Sequence[tuple[int, str]]) -> list[PositionNotification]:
        """Only what is proved, and what has to be looked up."""
        return self._judge.judge(heard, self._connection.cursor)

    def due_seconds(self) -> float | None:
        """Streams may wait for their look."""
        return self._judge.due_seconds

    def connected(self) -> None:
        """Everything is going to be looked at."""
        self._judge.forget()
