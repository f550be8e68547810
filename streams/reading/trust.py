"""Decides which notifications are trusted, because every role that may connect can send NOTIFY, even a read-only role.

PostgreSQL reports the sending session with each notification, and a sender cannot forge this. A position is trusted
only if the session that sent it holds the writer's lock. The table ``streams_instance`` says which session that is, and
only the site's roles may write this table. Replication servers also send one another commands for their followers. Such
a command is trusted only if the session's role may write the table of positions. Any other notification only causes a
read of the table. All untrusted notifications within ``LOOK_GAP_SECONDS`` cause only one read.

A *word* is a one-time secret: a random text. From a writer's second announcement on, ``OneTimeWords`` saves the query
that looks up the session. Each announcement contains the digest of the next word, and the next announcement on the
stream contains that word. A listener that receives both announcements knows that the same process sent them. A word is
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
#: How long a session that is not trusted is not looked up again (``TrustedSessions``).
FRESH_SECONDS = 2.0
#: Least time between two reads of the table that are caused by unproved notifications. The first read is made at once.
LOOK_GAP_SECONDS = 0.02
#: If the database role may not read who holds locks, the query is tried again after this time. Until then no notification can be
#: proved by a query.
_DENIED_SECONDS = 60.0
#: The time after which the query is tried again if its connection was lost or could not be opened.
_LOST_SECONDS = 1.0
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
#: SQL condition: notifications that are received now were sent a moment ago. Without it: a role sends notifications faster than
#: they are received, and they come minutes late. The role's session ends, and a writer's new session gets the same PID. Then
#: notifications of the role are taken for notifications of the writer. If only 32 pages (256 kB) wait in the server's queue,
#: they are received within moments, before all other PIDs were given away. A listener of another database may be 4 pages
#: behind for long.
_COMES_AT_ONCE = (
    "(SELECT pg_notification_queue_usage() * "
    "coalesce(current_setting('max_notify_queue_pages', true), '1048576')::float8) < 32"
)
_WRITERS = f"""
SELECT i.name, a.pid FROM streams_instance i JOIN pg_stat_activity a ON a.pid = i.lock_backend_pid
WHERE i.state <> 'retired' AND {_MAY_WRITE} AND {_COMES_AT_ONCE}
"""
#: The session that holds an advisory lock, its role, and whether this role may write positions. Parameter: the lock's key.
_HOLDER = f"SELECT a.pid, a.usename, ({_MAY_WRITE}) {driver.LOCK_HOLDERS} LIMIT 1"
_TRUSTED = (
    f"SELECT a.pid FROM pg_stat_activity a WHERE a.pid = ANY(%(sessions)s::int[]) AND {_MAY_WRITE} AND {_COMES_AT_ONCE}"
)


def stranger_with_lock(cursor: Any, key: int) -> str:
    """Describes the session that holds an advisory lock, if its role may not write positions. Else returns an empty text.

    A prepared transaction counts as such a session, because no program of this site prepares transactions.
    """
    cursor.execute(_HOLDER, [key])
    row = cursor.fetchone()
    if row is None or row[2]:
        return ""
    return "a prepared transaction" if row[0] is None else f"database session {row[0]} of role {row[1]}"


class OneTimeWords:
    """The one-time secrets (*words*) with which a writer proves its announcements.

    Only one thread at a time may use this object.
    """

    def __init__(self) -> None:
        self._next: dict[str, str] = {}

    def take(self, stream: str) -> str:
        """Returns ``WORD DIGEST`` for the stream's next announcement.

        The stream's previous announcement contained the digest of ``WORD``. ``DIGEST`` is the digest of the word that
        the announcement after the next one will contain.
        """
        word = self._next.get(stream) or secrets.token_hex(_WORD_BYTES)
        self._next[stream] = secrets.token_hex(_WORD_BYTES)
        return f"{word} {_digest(self._next[stream])}"


class ReceivedWords:
    """The digests by which senders of notifications are recognised, by session, writer and stream.

    A writer's notification contains a secret word, and the digest of the word in its next notification. Only one thread
    at a time may use this object.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[int, str, str], str] = {}

    def follow(self, said: tuple[int, str, str], words: str) -> bool:
        """Returns true if the word proves the sender, because the sender's last notification contained the digest of this word.

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
    """The sessions that held writers' locks at the last query. Only one thread at a time may use this object."""

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

        After such an error no session is known for ``_LOST_SECONDS``, and no query is made. The same holds after any
        other database error, such as a missing permission, but for ``_DENIED_SECONDS``.
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
            self._denied_until = now + _LOST_SECONDS
            raise
        except driver.DatabaseError as error:
            self._denied_until = now + _DENIED_SECONDS
            log.debug("trust.not_known", error=str(error).strip())

    def _believe(self, sessions: dict[str, int]) -> None:
        self._sessions, self._writers = sessions, frozenset(sessions.values())


class TrustedSessions:
    """The sessions whose roles may write positions. Only one thread at a time may use this object.

    Sessions that are not trusted are remembered for ``FRESH_SECONDS``, so that a flood of them causes few queries.
    Trusted sessions are looked up each time. Example: server A was found to be trusted, and is killed. In the same
    second the session of a read-only role gets A's PID. If the result for A's PID were remembered, this session would
    be trusted.
    """

    def __init__(self) -> None:
        self._strangers: dict[int, float] = {}

    def of(self, sessions: Collection[int], cursor: Cursor) -> set[int]:
        """Returns the trusted sessions among ``sessions``: their roles may write positions. Raises ``DatabaseError``."""
        now = time.monotonic()
        unknown = {one for one in sessions if self._strangers.get(one, -math.inf) + FRESH_SECONDS < now}
        if not unknown:
            return set()
        with cursor() as asking:
            asking.execute(_TRUSTED, {"sessions": sorted(unknown)})
            trusted = {row[0] for row in asking.fetchall()}
        if len(self._strangers) > _MOST_SESSIONS:
            self._strangers = {one: at for one, at in self._strangers.items() if one in sessions}
        self._strangers |= dict.fromkeys(unknown - trusted, now)
        return trusted
