"""Lets an operator act against a writer that holds its streams back: ask it to leave, or end its database sessions.

There are three means, from mild to harsh:

* A living writer is asked to drain, and then leaves by itself.
* The server ends the writer's open transactions (``pg_terminate_backend``). The transactions roll back, and the process
  learns this from the database like any other rollback.
* If the process does not react even to that, it hangs. Then the session that holds its writer lock is ended. This
  releases the lock, and the writer is retired like a dead writer.

Every action leaves a row in ``streams_writerresolution`` and a line in the log. The functions need a cursor of a direct
connection in autocommit mode. Every wait has a limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streams.conf import stream_settings
from streams.db import driver
from streams.errors import UnknownWriter
from streams.runtime.logs import get_logger
from streams.runtime.silence import silent_seconds_sql
from streams.writing import append_lock, lease
from streams.writing.dead_writers import Resolution, Trace, leave_trace, resolve_writer

__all__ = [
    "Holding",
    "OpenSession",
    "end_lock_holders",
    "end_process",
    "end_sessions",
    "holding",
    "is_free",
    "is_retired",
    "lock_holders",
    "wait_until",
]

log = get_logger(__name__)
#: A transaction that is younger than this is assumed to be working normally, and is not ended.
YOUNG_SECONDS = 1.0
_TERMINATE_MS = 5_000
_LOOK_SECONDS = 0.1

_SESSION = """
SELECT a.pid, a.backend_start, a.application_name, coalesce(host(a.client_addr), 'local'), coalesce(a.state, ''),
       a.xact_start, a.backend_xid::text::bigint, extract(epoch FROM clock_timestamp() - a.xact_start)::float8, left(a.query, 200)
"""
#: Sessions that hold an advisory lock. Parameter: the lock's key.
_LOCK_HOLDERS = f"{_SESSION} {driver.LOCK_HOLDERS} AND a.pid IS NOT NULL"
#: Sessions with an open transaction that appends as a writer. Parameter: the key of its append lock.
_APPENDING = f"{_SESSION} {append_lock.HOLDERS} AND a.pid IS NOT NULL ORDER BY a.xact_start NULLS LAST"
#: Sessions whose locks some given sessions wait for, except the given sessions. Parameters: the PIDs of the given ones, twice.
_BLOCKING = f"""
{_SESSION} FROM pg_stat_activity a
WHERE a.pid IN (SELECT unnest(pg_blocking_pids(waiting)) FROM unnest(%s::int[]) AS waiting) AND a.pid <> ALL (%s::int[])
  AND a.datname = current_database() ORDER BY a.xact_start NULLS LAST
"""
_INSTANCE = f"""
SELECT state, host, process_id, command, heartbeat_at, {silent_seconds_sql("heartbeat_at")}
FROM streams_instance WHERE name = %s
"""
_ROWS = """
SELECT stream, abs(position), state, pending_facts, oldest_pending_at, oldest_pending_transaction,
       extract(epoch FROM clock_timestamp() - oldest_pending_at)::float8
FROM streams_streamposition WHERE instance_name = %s ORDER BY stream
"""
#: Ends a session if it is still in the same transaction. Parameters: milliseconds to wait, PID, start of the session, start of
#: the transaction. Without the start of the session: an operator is asked, and answers minutes later. Meanwhile the session
#: of a hung writer ended, and a session of another program, idle too, got its PID.
_TERMINATE = """
SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity
WHERE pid = %s AND backend_start IS NOT DISTINCT FROM %s AND xact_start IS NOT DISTINCT FROM %s
"""
#: Tests whether a heartbeat was stored after a time. A heartbeat in the future does not count: it was stored before the
#: database's clock was set back.
_BEAT_SINCE = "SELECT heartbeat_at > %s AND heartbeat_at <= clock_timestamp() FROM streams_instance WHERE name = %s"
_NOW = "SELECT clock_timestamp()"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A database session that holds a lock of a writer."""

    pid: int
    since: datetime | None
    """Its start. None if the database hides it, as it does with sessions of other roles."""
    application_name: str
    address: str
    state: str
    transaction_since: datetime | None
    transaction: int | None
    """The transaction's number in PostgreSQL, 32 bits. None while it has written nothing."""
    open_seconds: float | None
    query: str

    def __str__(self) -> str:
        since = f", transaction {self.transaction or '(no number)'}" if self.transaction_since else ""
        since += f" open since {self.transaction_since:%Y-%m-%d %H:%M:%S}" if self.transaction_since else ""
        return f"database session {self.pid} from {self.address} ({self.application_name or 'unnamed'}, {self.state}{since})"


@dataclass(frozen=True, slots=True)
class Row:
    """A writer on one stream. The position is positive."""

    stream: str
    position: int
    state: str
    pending_facts: int
    oldest_pending_at: datetime | None
    oldest_pending_transaction: int | None
    pending_seconds: float | None


@dataclass(frozen=True, slots=True)
class Holding:
    """A writer, and everything of it that may hold back its streams: its process, its open transactions and its pending facts."""

    writer: str
    host: str
    process_id: int | None
    command: str
    heartbeat_at: datetime | None
    silent_seconds: float
    """Seconds since its last heartbeat."""
    lock: OpenSession | None
    """The session that holds its name. None if the process is gone."""
    transactions: tuple[OpenSession, ...]
    """Its open transactions that are older than ``YOUNG_SECONDS``, oldest first."""
    rows: tuple[Row, ...]

    @property
    def retired(self) -> bool:
        """Returns true if the writer has left all its streams."""
        return all(row.state == "retired" for row in self.rows)

    @property
    def pending_facts(self) -> int:
        """The number of IDs that are reserved and not complete, as the writer's process last reported it."""
        return sum(row.pending_facts for row in self.rows)

    @property
    def stuck_facts(self) -> int:
        """The number of pending IDs that should be complete by now.

        An ID should be complete after the time that a short transaction takes (``YOUNG_SECONDS``) and the time until its
        end is reported (two heartbeats).
        """
        news = YOUNG_SECONDS + 2 * stream_settings().heartbeat_seconds
        return sum(row.pending_facts for row in self.rows if (row.pending_seconds or 0.0) >= news)

    @property
    def is_silent(self) -> bool:
        """Returns true if a session holds the writer's name, but its process sends no heartbeats.

        The process is stopped or hangs, or its host is lost. Such a writer holds back readers of the linear position even
        if nothing is pending, because its own position no longer moves.
        """
        return self.lock is not None and not self.retired and self.silent_seconds > patience_seconds()

    @property
    def process(self) -> str:
        """A description of the writer's process for a message."""
        return f"process {self.process_id} on host {self.host} ({self.command})" if self.process_id else "its process"


def holding(cursor: Any, writer: str) -> Holding:
    """Reads the present state of a writer. Raises ``UnknownWriter``, which lists the names that exist."""
    cursor.execute(_ROWS, [writer])
    rows = tuple(Row(*row) for row in cursor.fetchall())
    if not rows:
        cursor.execute("SELECT DISTINCT instance_name FROM streams_streamposition ORDER BY 1 LIMIT 50")
        known = ", ".join(row[0] for row in cursor.fetchall())
        raise UnknownWriter(f"There is no writer {writer!r}. Writers: {known or 'none yet'}.")
    cursor.execute(_INSTANCE, [writer])
    _, host, process_id, command, heartbeat_at, silent_seconds = cursor.fetchone() or ("", "", None, "", None, 0.0)
    cursor.execute(_LOCK_HOLDERS, [driver.writer_key(cursor, writer)])
    held = [OpenSession(*row) for row in cursor.fetchall()]
    cursor.execute(_APPENDING, {"key": driver.append_key(cursor, writer)})
    found = [OpenSession(*row) for row in cursor.fetchall()]
    old = tuple(one for one in found if (one.open_seconds or 0.0) >= YOUNG_SECONDS)
    lock = held[0] if held else None
    return Holding(writer, host, process_id, command, heartbeat_at, silent_seconds, lock, old, rows)


def ask_to_leave(cursor: Any, writer: str, asked_by: str) -> list[str]:
    """Asks a living writer to drain. Returns the streams that the writer is going to leave."""
    streams = lease.mark_draining(cursor, writer, asked_by)
    log.info("writer.asked_to_drain", writer=writer, by=asked_by, streams=streams)
    return streams


def end_sessions(cursor: Any, found: Holding, by: str) -> list[OpenSession]:
    """Ends the sessions of the open transactions in ``found``, and stores a trace. Returns the sessions that were ended.

    A session whose transaction is over by now is not ended.
    """
    ended = _end(cursor, found.transactions)
    if ended:
        _trace(cursor, found, "ended " + "; ".join(map(str, ended)), by)
    return ended


def lock_holders(cursor: Any, found: Holding) -> tuple[OpenSession, ...]:
    """Returns the sessions whose locks the writer's open transactions wait for, except the writer's own sessions."""
    pids = [session.pid for session in found.transactions]
    cursor.execute(_BLOCKING, [pids, pids])
    return tuple(OpenSession(*row) for row in cursor.fetchall())


def end_lock_holders(cursor: Any, found: Holding, holders: Sequence[OpenSession], by: str) -> list[OpenSession]:
    """Ends sessions whose locks the writer waits for, and stores a trace. Returns the sessions that were ended.

    The writer's own transactions stay. A session whose transaction is over by now is not ended.
    """
    ended = _end(cursor, holders)
    if ended:
        _trace(cursor, found, "ended the holder of a lock: " + "; ".join(map(str, ended)), by)
    return ended


def _end(cursor: Any, sessions: Sequence[OpenSession]) -> list[OpenSession]:
    ended = []
    for session in sessions:
        cursor.execute(_TERMINATE, _to_terminate(session))
        if (row := cursor.fetchone()) is not None and row[0]:
            ended.append(session)
    return ended


def _to_terminate(session: OpenSession) -> list[Any]:
    """Returns the parameters of ``_TERMINATE``."""
    return [_TERMINATE_MS, session.pid, session.since, session.transaction_since]


def end_process(cursor: Any, found: Holding, by: str) -> list[Resolution]:
    """Ends the session that holds the writer's lock, then retires the writer like a dead writer.

    For a process that does not react. Ending the session proves nothing yet: the writer is retired only if both of its
    locks are obtained within 5 seconds. Returns an empty list if they are not, or if another process retired the writer
    first.
    """
    if found.lock is not None:
        cursor.execute(_TERMINATE, _to_terminate(found.lock))
        _trace(cursor, found, f"its process did not react; ended the session of its lock: {found.lock}", by)
    deadline = time.monotonic() + _TERMINATE_MS / 1000
    while not (done := resolve_writer(cursor, found.writer, by)) and time.monotonic() < deadline:
        if is_retired(cursor, found.writer):  # another process resolved it first
            break
        time.sleep(_LOOK_SECONDS)
    return done


def _trace(cursor: Any, found: Holding, evidence: str, by: str) -> None:
    for row in found.rows:
        if row.state != "retired":
            done = Resolution(row.stream, found.writer, row.position, row.position)
            leave_trace(cursor, done, Trace("aborted", evidence, by))
    log.warning("writer.aborted", writer=found.writer, evidence=evidence, by=by)


def is_retired(cursor: Any, writer: str) -> bool:
    """Returns true if the writer has left all its streams."""
    return holding(cursor, writer).retired


def is_free(cursor: Any, writer: str, ended: Sequence[OpenSession], since: datetime) -> bool:
    """Returns true if the writer has sent a heartbeat after ``since``, and no longer reports the ended transactions.

    ``ended`` are the sessions whose transactions were ended. If ``ended`` is empty, returns true if the writer has sent
    such a heartbeat and has no stuck facts.
    """
    cursor.execute(_BEAT_SINCE, [since, writer])
    row = cursor.fetchone()
    if row is None or not row[0]:
        return False
    if not ended:
        return not holding(cursor, writer).stuck_facts
    over = {session.transaction for session in ended}
    numbers = {row.oldest_pending_transaction for row in holding(cursor, writer).rows if row.pending_facts}
    return not {number & 0xFFFFFFFF for number in numbers if number is not None} & over


def now(cursor: Any) -> datetime:
    """Returns the time of the database's clock."""
    cursor.execute(_NOW)
    at: datetime = cursor.fetchone()[0]
    return at


def patience_seconds() -> float:
    """Returns the seconds that a living process may take to react: three heartbeats and two seconds."""
    return 3 * stream_settings().heartbeat_seconds + 2.0


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Polls the condition until it is true. Returns false if the time is up first."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
