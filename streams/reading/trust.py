"""Decides which notifications are trusted, because every role that may connect can send NOTIFY, even a read-only role.

PostgreSQL reports the sending session with each notification, and this cannot be forged. A position is trusted only if
the session that sent it holds the writer's lock. The table ``streams_instance`` says which session that is, and only
the site's roles may write this table. Replication servers also send one another commands for their followers. Such a
command is trusted only if the session's role may write the table of positions. Any other notification only causes a
read of the table. All untrusted notifications within ``LOOK_GAP_SECONDS`` cause only one read.

A *word* is a one-time secret: a random text. From a writer's second announcement on, ``OneTimeWords`` saves the query that
looks up the session. Each announcement contains the digest of the next word, and the next announcement on the stream
contains that word. A listener that receives both knows that the same process sent them. A word is worthless once it was
received.
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
#: How long the result of a query about a session's role is used (``TrustedSessions``).
FRESH_SECONDS = 2.0
#: Least time between two reads of the table that are caused by unproved notifications. The first read is made at once.
LOOK_GAP_SECONDS = 0.02
#: If the database role may not read who holds locks, the query is tried again after this time. Until then no notification can be
#: proved by a query.
_DENIED_SECONDS = 60.0
_WORD_BYTES = 16
#: If results for more sessions than this are stored, only the results for the sessions of the present call are kept.
_MOST_SESSIONS = 1_000

Cursor = Callable[[], AbstractContextManager[Any]]

#: SQL condition on a living session ``a``: its role may write the table of positions. Sessions are looked up after their
#: notification was received. Without the condition: a writer is killed, the session of a read-only role gets the same PID, and
#: its notification is taken for one of the writer.
_MAY_WRITE = """
a.datid = (SELECT oid FROM pg_database WHERE datname = current_database())
AND has_table_privilege(a.usesysid, 'streams_streamposition', 'UPDATE')
"""
_WRITERS = f"""
SELECT i.name, a.pid FROM streams_instance i JOIN pg_stat_activity a ON a.pid = i.lock_backend_pid
WHERE i.state <> 'retired' AND {_MAY_WRITE}
"""
#: The session that holds an advisory lock, its role, and whether this role may write positions. Parameter: the lock's key.
_HOLDER = f"SELECT a.pid, a.usename, ({_MAY_WRITE}) {driver.LOCK_HOLDERS} LIMIT 1"
_TRUSTED = f"SELECT a.pid FROM pg_stat_activity a WHERE a.pid = ANY(%(sessions)s::int[]) AND {_MAY_WRITE}"


def stranger_with_lock(cursor: Any, key: int) -> str:
    """Describes the session that holds an advisory lock, if its role may not write positions. Else returns an empty text."""
    cursor.execute(_HOLDER, [key])
    row = cursor.fetchone()
    return "" if row is None or row[2] else f"database session {row[0]} of role {row[1]}"


class OneTimeWords:
    """The one-time secrets (*words*) with which a writer proves its announcements. For one thread at a time."""

    def __init__(self) -> None:
        self._next: dict[str, str] = {}

    def take(self, stream: str) -> str:
        """Returns ``WORD DIGEST`` for the stream's next announcement.

        The stream's previous announcement contained the digest of ``WORD``. ``DIGEST`` is the digest of the word that the
        announcement after this one will contain.
        """
        word = self._next.get(stream) or secrets.token_hex(_WORD_BYTES)
        self._next[stream] = secrets.token_hex(_WORD_BYTES)
        return f"{word} {_digest(self._next[stream])}"


class ReceivedWords:
    """The digest of each writer's next word, by session, writer and stream. For one thread at a time."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str, str], str] = {}

    def follow(self, said: tuple[int, str, str], words: str) -> bool:
        """Returns true if the word proves the sender, because the sender's last notification contained its digest.

        ``said`` is the claimed sender as (session, writer, stream), and ``words`` is ``WORD DIGEST``. If the sender is
        proved, the new digest is stored.
        """
        word, _, digest = words.partition(" ")
        if not digest or self._told.get(said) != _digest(word):
            return False
        self._told[said] = digest
        return True

    def begin(self, said: tuple[int, str, str], words: str) -> None:
        """Stores the digest in ``words`` after a query has proved the sender ``said``.

        If ``words`` contains no digest, the stored digest of this sender is removed.
        """
        if digest := words.partition(" ")[2]:
            self._told[said] = digest
        else:
            self._told.pop(said, None)

    def keep(self, speaks_for: Callable[[int, str], bool]) -> None:
        """Removes the digests of sessions that no longer hold their writer's lock.

        ``speaks_for(session, writer)`` must return true if the session holds the lock of this writer.
        """
        self._told = {said: digest for said, digest in self._told.items() if speaks_for(*said[:2])}


def _digest(word: str) -> str:
    return hashlib.blake2b(word.encode(), digest_size=_WORD_BYTES).hexdigest()


class WriterSessions:
    """The sessions that held writers' locks at the last query. For one thread at a time."""

    def __init__(self) -> None:
        self._sessions: dict[str, int] = {}
        self._writers: frozenset[int] = frozenset()
        self._denied_until = -math.inf

    def speaks_for(self, session: int, writer: str) -> bool:
        """Returns true if that session held this writer's lock at the last query."""
        return self._sessions.get(writer) == session

    def is_writers(self, session: int) -> bool:
        """Returns true if that session held the lock of any writer at the last query."""
        return session in self._writers

    def look(self, cursor: Cursor) -> None:
        """Reads from the database which sessions hold writers' locks. Raises the driver's errors if the connection is gone.

        After any other database error no session is known for ``_DENIED_SECONDS``. Such an error occurs, for instance, if
        the role lacks a permission.
        """
        self._believe({})  # after an error no session is known
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
    """The sessions whose roles may write positions, cached for ``FRESH_SECONDS``. For one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, bool]] = {}

    def of(self, sessions: Collection[int], cursor: Cursor) -> set[int]:
        """Returns those of ``sessions`` whose roles may write positions. Raises ``DatabaseError``."""
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
