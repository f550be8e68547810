"""Telling and hearing that positions moved.

A poke says ``stream writer position`` at most, with two words that prove whose it is, and may be lost: whoever listens also looks
at the table of positions after each (re)connection and now and then. It never carries facts.

Every role that may connect can say one. ``PokeJudge`` lets a position pass that the session of its writer's lock has said; all
else means "look at the table", a bounded number of times (``streams.reading.trust``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from streams.core import lookup
from streams.db import driver
from streams.reading.notify import NotifyListener
from streams.reading.trust import LOOK_GAP_SECONDS, Cursor, HeardWords, WriterSessions

__all__ = ["CHANNEL", "Poke", "PokeJudge", "PokeListener", "poke"]

CHANNEL = "replsite_streams"
_MOST_DIGITS = 18  # a bigint holds each such number
#: Blanks in ``stream writer position``, and with words behind it that prove whose it is.
_SPACES, _SPACES_WITH_WORDS = 2, 4


@dataclass(frozen=True, slots=True)
class Poke:
    """A writer's position rose; without a position: the set of writers changed, look at the table."""

    stream: str
    writer: str
    position: int | None

    @classmethod
    def parse(cls, payload: str) -> Poke:
        """Read a NOTIFY payload; anything odd means "look at the table"."""
        parts = payload.split(" ", _SPACES_WITH_WORDS + 1)
        has_position = len(parts) - 1 in (_SPACES, _SPACES_WITH_WORDS)
        is_position = has_position and parts[2].isdecimal() and len(parts[2]) <= _MOST_DIGITS
        position = int(parts[2]) if is_position else None
        return cls(parts[0], parts[1] if len(parts) > 1 else "", position)


def poke(cursor: Any, stream: str, writer: str, position: int | None = None) -> None:
    """Tell everybody, once the cursor's transaction is committed; without a position: the set of writers changed."""
    payload = f"{stream} {writer}" if position is None else f"{stream} {writer} {position}"
    cursor.execute("SELECT pg_notify(%s, %s)", [driver.channel(cursor, CHANNEL), payload])


class PokeJudge:
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
        self._words = HeardWords()
        self._look_due = 0.0
        self._waiting: set[str] = set()

    def forget(self) -> None:
        """The caller looks at everything: nothing that was heard so far has to be looked up any more."""
        self._waiting = set()
        self._words = HeardWords()

    def look_again(self, streams: set[str]) -> None:
        """The caller could not look at these streams."""
        self._waiting |= streams

    @property
    def due_seconds(self) -> float | None:
        """When there is something to hand out though nothing is heard; None: never."""
        return max(0.0, self._look_due - time.monotonic()) if self._waiting else None

    def judge(self, heard: Sequence[tuple[int, str]], cursor: Cursor) -> list[Poke]:
        """What is to be done about notifications, given as (session, payload) in the order in which they came.

        Of streams that this program does not know nothing is kept. Raises what a lost connection does.
        """
        now = time.monotonic()
        is_due = now >= self._look_due
        proved = [self._proved(*one) for one in heard]
        if is_due and any(poke is None and self._may_be_proved(*one) for poke, one in zip(proved, heard, strict=True)):
            self._sessions.look(cursor)
            self._words.keep(self._sessions.speaks_for)
            proved = [poke or self._vouched_for(*one) for poke, one in zip(proved, heard, strict=True)]
        others = {payload.partition(" ")[0] for poke, (_, payload) in zip(proved, heard, strict=True) if poke is None}
        unclear = self._waiting | {stream for stream in others if lookup.find(stream) is not None}
        given = [poke for poke in proved if poke is not None and poke.stream not in unclear]
        if not unclear or not is_due:
            self._waiting = unclear
            return given
        self._look_due, self._waiting = now + LOOK_GAP_SECONDS, set()
        return [Poke(stream, "", None) for stream in sorted(unclear)] + given

    def _proved(self, session: int, payload: str) -> Poke | None:
        """The position that it tells, when it is known without a question who said it.

        Of what sessions say that are no writers' not even the words are read: somebody who says 100,000 things a second must not
        keep this thread busy.
        """
        is_own = self.own is not None and session == self.own[0]
        if not is_own and not self._sessions.is_writers(session):
            return None
        poke = Poke.parse(payload)
        if poke.position is None or lookup.find(poke.stream) is None:
            return None
        if (session, poke.writer) == self.own:
            return poke
        return poke if self._words.follow((session, poke.writer, poke.stream), _words_of(payload)) else None

    def _vouched_for(self, session: int, payload: str) -> Poke | None:
        """The position that it tells, when its session was found to be its writer's just now, after it was heard."""
        if not self._sessions.is_writers(session):
            return None
        poke = Poke.parse(payload)
        if poke.position is None or lookup.find(poke.stream) is None:
            return None
        if not self._sessions.speaks_for(session, poke.writer):
            return None
        self._words.begin((session, poke.writer, poke.stream), _words_of(payload))
        return poke

    def _may_be_proved(self, session: int, payload: str) -> bool:
        """Whether it looks like a position of another writer than the caller."""
        if payload.count(" ") not in (_SPACES, _SPACES_WITH_WORDS) or lookup.find(payload.partition(" ")[0]) is None:
            return False
        return self.own is None or session != self.own[0] or payload.split(" ", 2)[1] != self.own[1]


def _words_of(payload: str) -> str:
    """What follows the position."""
    return payload.split(" ", 3)[3] if payload.count(" ") == _SPACES_WITH_WORDS else ""


class PokeListener(NotifyListener[Poke]):
    """Calls ``on_pokes`` with what was heard, and with an empty list after each (re)connection ("look at everything")."""

    def __init__(self, on_pokes: Callable[[list[Poke]], None], using: str | None = None, name: str = "reader") -> None:
        super().__init__(CHANNEL, on_pokes, using, f"pokes {name}")
        self._judge = PokeJudge()

    def take(self, heard: Sequence[tuple[int, str]]) -> list[Poke]:
        """Only what is proved, and what has to be looked up."""
        return self._judge.judge(heard, self._connection.cursor)

    def due_seconds(self) -> float | None:
        """Streams may wait for their look."""
        return self._judge.due_seconds

    def connected(self) -> None:
        """Everything is going to be looked at."""
        self._judge.forget()
