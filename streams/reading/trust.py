"""Decides which notifications count, because every role that may connect can send NOTIFY, even one that may only read.

PostgreSQL names the sending session with each notification, and that cannot be forged. A position counts only if its
session holds the writer's lock, as ``streams_instance`` says; only the site's roles may write that table. A line for
followers counts only if the session's role may write the table of positions itself. Any other notification means at most
"look at the table". All of these within ``LOOK_GAP_SECONDS`` cause one look.

``OneTimeWords`` saves the query from a writer's second announcement on. Each announcement carries the digest of a word,
and the next one of its stream carries the word. A listener that receives both knows that one process sent them. A word is
worthless once it was received.
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

__all__ = [
    "FRESH_SECONDS",
    "LOOK_GAP_SECONDS",
    "OneTimeWords",
    "ReceivedWords",
    "TrustedSessions",
    "WriterSessions",
    "stranger_with_lock",
]

log = get_logger(__name__)
#: For so long an answer about a session that relays hints is believed.
FRESH_SECONDS = 2.0
#: Smallest time between two looks at the table for unproved notifications. The first after a pause is made at once.
LOOK_GAP_SECONDS = 0.02
#: A role that may not read the holders of locks tries again after this. Until then every notification is a look at the table.
_DENIED_SECONDS = 60.0
_WORD_BYTES = 16
#: With more remembered answers than this, those about other sessions than the present ones are forgotten.
_MOST_SESSIONS = 1_000

Cursor = Callable[[], AbstractContextManager[Any]]

#: Part of a statement: living sessions ``a`` of roles that may move positions by themselves. A session is looked up after its
#: notification was received. Otherwise: a writer is killed, a reader's session gets its number, and the reader's notification
#: counts as the writer's. With this condition the new session must also be of a role that may write.
_MAY_WRITE = """
a.datid = (SELECT oid FROM pg_database WHERE datname = current_database())
AND has_table_privilege(a.usesysid, 'streams_streamposition', 'UPDATE')
"""
_WRITERS = f"""
SELECT i.name, a.pid FROM streams_instance i JOIN pg_stat_activity a ON a.pid = i.lock_backend_pid
WHERE i.state <> 'retired' AND {_MAY_WRITE}
"""
#: Session and role that hold an advisory lock, and whether the role may write. Parameter: the lock's key.
_HOLDER = f"SELECT a.pid, a.usename, ({_MAY_WRITE}) {driver.LOCK_HOLDERS} LIMIT 1"
_TRUSTED = f"SELECT a.pid FROM pg_stat_activity a WHERE a.pid = ANY(%(sessions)s::int[]) AND {_MAY_WRITE}"


def stranger_with_lock(cursor: Any, key: int) -> str:
    """Returns the session that holds an advisory lock, in words, if its role may not write positions. Empty otherwise."""
    cursor.execute(_HOLDER, [key])
    row = cursor.fetchone()
    return "" if row is None or row[2] else f"database session {row[0]} of role {row[1]}"


class OneTimeWords:
    """The words with which a writer proves its announcements; for one thread at a time."""

    def __init__(self) -> None:
        self._next: dict[str, str] = {}

    def take(self, stream: str) -> str:
        """Returns ``WORD DIGEST`` for the stream's next announcement.

        The digest of this word went with the announcement before. ``DIGEST`` is that of the word to come.
        """
        word = self._next.get(stream) or secrets.token_hex(_WORD_BYTES)
        self._next[stream] = secrets.token_hex(_WORD_BYTES)
        return f"{word} {_digest(self._next[stream])}"


class ReceivedWords:
    """The digests that were received, by session, writer and stream; for one thread at a time."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str, str], str] = {}

    def follow(self, said: tuple[int, str, str], words: str) -> bool:
        """Returns true if the word proves the sender: its digest came with the sender's last notification.

        ``said`` is the claimed sender as (session, writer, stream), and ``words`` is ``WORD DIGEST``. If the word is
        right, the new digest is stored.
        """
        word, _, digest = words.partition(" ")
        if not digest or self._told.get(said) != _digest(word):
            return False
        self._told[said] = digest
        return True

    def begin(self, said: tuple[int, str, str], words: str) -> None:
        """Stores the digest in ``words``, of a sender that was proved by a query.

        If there is no digest in ``words``, the stored one is removed.
        """
        if digest := words.partition(" ")[2]:
            self._told[said] = digest
        else:
            self._told.pop(said, None)

    def keep(self, speaks_for: Callable[[int, str], bool]) -> None:
        """Removes the digests of sessions that no longer hold their writer's lock, as ``speaks_for(session, writer)`` returns."""
        self._told = {said: digest for said, digest in self._told.items() if speaks_for(*said[:2])}


def _digest(word: str) -> str:
    return hashlib.blake2b(word.encode(), digest_size=_WORD_BYTES).hexdigest()


class WriterSessions:
    """The sessions that held writers' locks when they were last looked up; for one thread at a time."""

    def __init__(self) -> None:
        self._sessions: dict[str, int] = {}
        self._writers: frozenset[int] = frozenset()
        self._denied_until = -math.inf

    def speaks_for(self, session: int, writer: str) -> bool:
        """Returns true if that session held the writer's lock."""
        return self._sessions.get(writer) == session

    def is_writers(self, session: int) -> bool:
        """Returns true if that session held the lock of some writer."""
        return session in self._writers

    def look(self, cursor: Cursor) -> None:
        """Reads the sessions from the database. Raises the driver's errors if the connection is gone.

        After any other database error nothing is known for ``_DENIED_SECONDS``; a role may lack the permission to read this.
        """
        self._believe({})  # after an error nothing is known
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
    """The sessions of roles that may write positions, remembered for ``FRESH_SECONDS``; for one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, bool]] = {}

    def of(self, sessions: Collection[int], cursor: Cursor) -> set[int]:
        """Returns those of the sessions whose roles may write positions. Raises ``DatabaseError``."""
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
