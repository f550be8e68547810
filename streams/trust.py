"""Whose notifications count: NOTIFY may be said by every role that may connect, also by one that may only read.

PostgreSQL tells with each notification which session sent it, and that cannot be made up. So a position counts only when the
session is the one that holds its writer's lock, as ``streams_instance`` tells, which only the site's roles may write; and a
line for followers only when the session's role may write the table of positions itself. From anybody else a notification
means at most "look at the table", and looks are bounded: whatever comes within ``LOOK_GAP_SECONDS`` is one look.

The number of a session that has ended may be given to another one. So the session must live and be of a role that may
write when it is looked up, and what was looked up counts for ``FRESH_SECONDS``, or until a writer says that one left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

from streams import database
from streams.logs import get_logger

__all__ = ["FRESH_SECONDS", "LOOK_GAP_SECONDS", "TrustedSessions", "WriterSessions"]

log = get_logger(__name__)
#: What was looked up about sessions is believed for so long.
FRESH_SECONDS = 2.0
#: Looks at the table for what nobody has proved follow each other no faster; the first after a pause is made at once.
LOOK_GAP_SECONDS = 0.02
#: A role that may not read who holds which lock asks again after this, and looks at the table until then.
_DENIED_SECONDS = 60.0
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


class WriterSessions:
    """Which session speaks for which writer; for one thread at a time."""

    def __init__(self) -> None:
        self._sessions: dict[str, int] = {}
        self._writers: frozenset[int] = frozenset()
        self._read_at = -math.inf
        self._denied_until = -math.inf

    def forget(self) -> None:
        """Look up everything anew before anybody is believed."""
        self._believe({})
        self._read_at = -math.inf

    def is_fresh(self, now: float) -> bool:
        """Whether what was looked up counts."""
        return now < max(self._read_at + FRESH_SECONDS, self._denied_until)

    def speaks_for(self, session: int, writer: str) -> bool:
        """Whether that session holds the writer's lock."""
        return self._sessions.get(writer) == session

    def is_writers(self, session: int) -> bool:
        """Whether that session holds the lock of some writer."""
        return session in self._writers

    def look(self, cursor: Cursor) -> None:
        """Ask the database; a role that may not read this believes nobody. Raises when the connection is gone."""
        self._believe({})
        now = time.monotonic()
        if now < self._denied_until:
            return
        try:
            with cursor() as asking:
                asking.execute(_WRITERS)
                self._believe(dict(asking.fetchall()))
        except database.connection_gone:
            raise
        except database.DatabaseError as error:
            self._denied_until = now + _DENIED_SECONDS
            log.debug("trust.not_known", error=str(error).strip())
        self._read_at = now  # before the question: what changed since is not covered

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
