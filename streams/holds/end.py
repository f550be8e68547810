"""Ends open appends that hold a stream back, and the sessions for whose locks they wait.

A transaction that is ended rolls back, and its process learns that from the database like any other rollback. A prepared
transaction has no session: ROLLBACK PREPARED ends it. The functions need a cursor of a direct connection in autocommit mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streams.holds.look import YOUNG_SECONDS, Holder, each_once, keepers
from streams.runtime.logs import get_logger

__all__ = ["Blocker", "blockers", "end_blockers", "end_holders", "old_holders"]

log = get_logger(__name__)
_TERMINATE_MS = 5_000

_OLD = """
SELECT stream, bound, pid, prepared, since, state, role, application, client, statement, class FROM streams_holders
WHERE stream = %s AND coalesce(since, '-infinity') < clock_timestamp() - make_interval(secs => %s) ORDER BY bound, since
"""
_BLOCKERS = """
SELECT a.pid, a.usename, a.application_name, coalesce(a.state, ''), a.xact_start, array_agg(w.pid)
FROM unnest(%s::int[]) AS w (pid) CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b (pid)
JOIN pg_stat_activity a ON a.pid = b.pid AND a.datname = current_database() WHERE a.pid <> ALL (%s::int[])
GROUP BY 1, 2, 3, 4, 5 ORDER BY a.xact_start NULLS LAST
"""
#: Ends a session if it is still in the same transaction: an operator is asked, and answers minutes later. Meanwhile the
#: session may have ended, and a session of another program got its PID.
_TERMINATE = """
SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE pid = %s AND xact_start IS NOT DISTINCT FROM %s
"""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session whose locks an open append waits for."""

    pid: int
    role: str
    application: str
    state: str
    since: datetime | None
    """The start of its transaction. None if the database hides it, as it does with sessions of other roles."""
    waiting: Sequence[int] = ()
    """The PIDs of the open appends that wait for it."""

    def __str__(self) -> str:
        since = f", transaction open since {self.since:%Y-%m-%d %H:%M:%S}" if self.since else ""
        return f"database session {self.pid} of role {self.role} ({self.application or 'unnamed'}, {self.state}{since})"


def old_holders(cursor: Any, stream: str) -> list[Holder]:
    """Returns the open appends of the stream that are older than ``YOUNG_SECONDS``. The one that holds it back comes first.

    After them come the transactions that keep its positions from being stored.
    """
    cursor.execute(_OLD, [stream, YOUNG_SECONDS])
    found = [Holder(*row) for row in cursor.fetchall()]
    return each_once([*found, *keepers(cursor, [stream])])


def blockers(cursor: Any, found: Sequence[Holder]) -> list[Blocker]:
    """Returns the sessions whose locks these open appends wait for, except their own sessions."""
    pids = [holder.pid for holder in found if holder.pid is not None]
    cursor.execute(_BLOCKERS, [pids, pids])
    return [Blocker(*row) for row in cursor.fetchall()]


def end_holders(cursor: Any, found: Sequence[Holder], by: str) -> list[Holder]:
    """Ends the sessions of these open appends. Returns those that were ended.

    A session whose transaction is over by now, and a prepared transaction, are not ended.
    """
    return [held for held in found if held.pid is not None and _end(cursor, held.pid, held.since, str(held), by)]


def end_blockers(cursor: Any, found: Sequence[Blocker], by: str) -> list[Blocker]:
    """Ends these sessions. Returns those that were ended. A session whose transaction is over by now is not ended."""
    return [blocker for blocker in found if _end(cursor, blocker.pid, blocker.since, str(blocker), by)]


def _end(cursor: Any, pid: int, since: datetime | None, session: str, by: str) -> bool:
    cursor.execute(_TERMINATE, [_TERMINATE_MS, pid, since])
    is_ended = bool((row := cursor.fetchone()) is not None and row[0])
    if is_ended:
        log.warning("holder.ended", session=session, by=by)
    return is_ended
