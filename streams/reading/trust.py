"""Decides which commands of other servers are passed on, because every role that may connect can send NOTIFY.

Replication servers send one another commands for their followers (``streams.replication.server.relay``). PostgreSQL reports the
sending session with each notification, and a sender cannot forge this. A command is trusted only if the session's role may
write the table of positions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

from streams.db import driver

#: How long a session that is not trusted is not looked up again.
FRESH_SECONDS = 2.0
#: If results for more sessions than this are stored, only the results for the sessions of the present call are kept.
_MOST_SESSIONS = 1_000

Cursor = Callable[[], AbstractContextManager[Any]]

#: SQL condition on a living session ``a``: its role may write the table of positions. Sessions are looked up after their
#: notification was received. Without the condition: a server is killed, the session of a read-only role gets the same PID, and
#: its command is taken for one of the server.
MAY_WRITE = """
a.datid = (SELECT oid FROM pg_database WHERE datname = current_database())
AND has_table_privilege(a.usesysid, 'streams_streamposition', 'UPDATE')
"""
#: SQL condition: notifications that are received now were sent a moment ago. Without it: a role sends notifications faster than
#: they are received, and they come minutes late. The role's session ends, and a server's new session gets the same PID. Then
#: commands of the role are taken for commands of the server. If only 32 pages (256 kB) wait in the server's queue,
#: they are received within moments, before all other PIDs were given away. A listener of another database may be 4 pages
#: behind for long.
_COMES_AT_ONCE = (
    "(SELECT pg_notification_queue_usage() * "
    "coalesce(current_setting('max_notify_queue_pages', true), '1048576')::float8) < 32"
)
#: The session that holds an advisory lock, its role, and whether this role may write positions. Parameter: the lock's key.
_HOLDER = f"SELECT a.pid, a.usename, ({MAY_WRITE}) {driver.LOCK_HOLDERS} LIMIT 1"
_TRUSTED = (
    f"SELECT a.pid FROM pg_stat_activity a WHERE a.pid = ANY(%(sessions)s::int[]) AND {MAY_WRITE} AND {_COMES_AT_ONCE}"
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


class TrustedSessions:
    """The sessions whose roles may write positions. Only one thread at a time may use this object.

    Sessions that are not trusted are remembered for ``FRESH_SECONDS``, so that a flood of them causes few queries.
    Trusted sessions are looked up each time. Example: server A was found to be trusted, and is killed. In the same
    second the session of a read-only role gets A's PID. If the result for A's PID were remembered, this session would
    be trusted.
    """

    def __init__(self) -> None:
        self._strangers: dict[int, float] = {}

    def among(self, sessions: Collection[int], cursor: Cursor) -> set[int]:
        """Returns the trusted sessions among ``sessions``: their roles may write positions. Raises ``DatabaseError``."""
        now = time.monotonic()
        unknown = {session for session in sessions if self._strangers.get(session, -math.inf) + FRESH_SECONDS < now}
        if not unknown:
            return set()
        with cursor() as asking:
            asking.execute(_TRUSTED, {"sessions": sorted(unknown)})
            trusted = {row[0] for row in asking.fetchall()}
        if len(self._strangers) > _MOST_SESSIONS:
            self._strangers = {session: at for session, at in self._strangers.items() if session in sessions}
        self._strangers |= dict.fromkeys(unknown - trusted, now)
        return trusted
