"""Whose notifications count: NOTIFY may be said by every role that may connect, also by one that may only read.

PostgreSQL tells with each notification which session sent it, and that cannot be made up. So a position counts only when the
session is the one that holds its writer's lock, as ``streams_instance`` tells, which only the site's roles may write; and a
line for followers only when the session's role may write the table of positions itself. From anybody else a notification
means at most "look at the table", and looks are bounded: whatever comes within ``LOOK_GAP_SECONDS`` is one look.

The number of a session that has ended may be given to another one: a writer is killed, and a reader whose session gets its
number speaks in its name. So a session is looked up after it was heard, must live then, and be of a role that may write.
``OneTimeWords`` saves the question from the second time on: each announcement tells the digest of a word that the
next one of its stream brings, and who hears both knows that one process said them. A word is worth nothing once it was heard.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

from streams.db import driver
from streams.runtime.logs import get_logger

__all__ = ["FRESH_SECONDS", "LOOK_GAP_SECONDS", "OneTimeWords", "ReceivedWords", "TrustedSessions", "WriterSessions"]

log = get_logger(__name__)
#: What was looked up about sessions that relay hints is believed for so long.
FRESH_SECONDS = 2.0
#: Looks at the table for what nobody has proved follow each other no faster; the first after a pause is made at once.
LOOK_GAP_SECONDS = 0.02
#: A role that may not read who holds which lock asks again after this, and looks at the table until then.
_DENIED_SECONDS = 60.0
_WORD_BYTES = 16
#: Sessions whose answer is remembered; beyond that all are asked about anew.
_MOST_SESSIONS = 1_000

Cursor = Callable[[], AbstractContextManager[Any]]

#: Part of a statement: living sessions ``a`` of roles that may move positions by themselves.
_MAY_WRITE = """
a.datid = (SELECT oid FROM pg_database WHERE datname = current_database())
AND has_table_privilege(a.usesysid, 'streams_streamposition', 'UPDATE')
"""
_WRITERS = f"""
SELECT i.name, a.pid FROM streams_instance i JOIN pg_stat_activity a ON a.pid = i.lock_backend_pid
WHERE i.state <> 'retired' AND {_MAY_WRITE}
"""
_TRUSTED = f"SELECT a.pid FROM pg_stat_activity a WHERE a.pid = ANY(%(sessions)s::int[]) AND {_MAY_WRITE}"


class OneTimeWords:
    """What a writer proves its announcements with; for one thread at a time."""

    def __init__(self) -> None:
        self._next: dict[str, str] = {}

    def take(self, stream: str) -> str:
        """``WORD DIGEST``: the word whose digest was told with the stream's last announcement, and the digest of the next."""
        word = self._next.get(stream) or secrets.token_hex(_WORD_BYTES)
        self._next[stream] = secrets.token_hex(_WORD_BYTES)
        return f"{word} {_digest(self._next[stream])}"


class ReceivedWords:
    """The digests that were told, by session, writer and stream; for one thread at a time."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str, str], str] = {}

    def follow(self, said: tuple[int, str, str], words: str) -> bool:
        """Whether these words go on from those that were heard before them."""
        word, _, digest = words.partition(" ")
        if not digest or self._told.get(said) != _digest(word):
            return False
        self._told[said] = digest
        return True

    def begin(self, said: tuple[int, str, str], words: str) -> None:
        """It is known otherwise that the writer said this."""
        if digest := words.partition(" ")[2]:
            self._told[said] = digest
        else:
            self._told.pop(said, None)

    def keep(self, speaks_for: Callable[[int, str], bool]) -> None:
        """Forget those of sessions that speak for their writer no longer."""
        self._told = {said: digest for said, digest in self._told.items() if speaks_for(*said[:2])}


def _digest(word: str) -> str:
    return hashlib.blake2b(word.encode(), digest_size=_WORD_BYTES).hexdigest()


class WriterSessions:
    """Which session speaks for which writer, when it was looked up last; for one thread at a time."""

    def __init__(self) -> None:
        self._sessions: dict[str, int] = {}
        self._writers: frozenset[int] = frozenset()
        self._denied_until = -math.inf

    def speaks_for(self, session: int, writer: str) -> bool:
        """Whether that session held the writer's lock."""
        return self._sessions.get(writer) == session

    def is_writers(self, session: int) -> bool:
        """Whether that session held the lock of some writer."""
        return session in self._writers

    def look(self, cursor: Cursor) -> None:
        """Ask the database; a role that may not read this knows of nobody. Raises when the connection is gone."""
        self._believe({})
        now = time.monotonic()
        if now < self._denied_until:
            return
        try:
            with cursor() as asking:
                asking.execute(_WRITERS)
                self._believe(dict(asking.fetchall()))
        except driver.connection_gone:
            raise
        except driver.DatabaseError as error:
            self._denied_until = now + _DENIED_SECONDS
            log.debug("trust.not_known", error=str(error).strip())

    def _believe(self, sessions: dict[str, int]) -> None:
        self._sessions, self._writers = sessions, frozenset(sessions.values())


class TrustedSessions:
    """Which sessions belong to roles that may write positions by themselves; for one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, bool]] = {}

    def of(self, sessions: Collection[int], cursor: Cursor) -> set[int]:
        """Those of them that do. Raises ``DatabaseError``."""
        now = time.monotonic()
        unknown = {one for one in sessions if self._known.get(one, (-math.inf, False))[0] + FRESH_SECONDS < now}
        if unknown:
            with cursor() as asking:
                asking.execute(_TRUSTED, {"sessions": sorted(unknown)})
                found = {row[0] for row in asking.fetchall()}
            if len(self._known) > _MOST_SESSIONS:
                self._known = {one: answer for one, answer in self._known.items() if one in sessions}
            self._known |= {one: (now, one in found) for one in unknown}
        return {one for one in sessions if self._known[one][1]}
