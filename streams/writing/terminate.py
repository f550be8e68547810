"""The means of an operator against a writer that holds its streams back: ask it to leave, or end its sessions.

A living writer is asked to drain, and leaves by itself. Its open transactions can be ended by the server
(``pg_terminate_backend``): they roll back, and the process learns this from the database like any other rollback. A
process that does not react even then hangs. Ending the session of its lock releases the lock, and the writer is resolved
by evidence like a dead one.

Every step leaves a row in ``streams_writerresolution`` and a line in the log. ``cursor`` belongs to a direct connection
in autocommit mode. Every wait has a limit.
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
from streams.writing import lease
from streams.writing.dead_writers import Resolution, Trace, leave_trace, resolve_writer

__all__ = ["Holding", "OpenSession", "end_process", "end_sessions", "holding", "is_free", "is_retired", "wait_until"]

log = get_logger(__name__)
#: A transaction that is younger than this is taken to be at work, and is left alone.
YOUNG_SECONDS = 1.0
_TERMINATE_MS = 5_000
_LOOK_SECONDS = 0.1

#: Sessions that hold an advisory lock, and what they do. Parameter: the lock's key.
_HOLDERS = f"""
SELECT a.pid, a.application_name, coalesce(host(a.client_addr), 'local'), coalesce(a.state, ''), a.xact_start,
       a.backend_xid::text::bigint, extract(epoch FROM clock_timestamp() - a.xact_start)::float8, left(a.query, 200)
{driver.LOCK_HOLDERS}
ORDER BY a.xact_start NULLS LAST
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
#: Ends a session if it is still in the same transaction. Parameters: milliseconds to wait, PID, the transaction's begin.
_TERMINATE = """
SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE pid = %s AND xact_start IS NOT DISTINCT FROM %s
"""
#: Tests for a heartbeat after a time. One in the future is of before the clock was set back, and does not count.
_BEAT_SINCE = "SELECT heartbeat_at > %s AND heartbeat_at <= clock_timestamp() FROM streams_instance WHERE name = %s"
_NOW = "SELECT clock_timestamp()"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A database session that holds a lock of a writer."""

    pid: int
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
    """A writer and everything of it that holds its streams back: its process, its open transactions, its pending facts."""

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
        """Returns true if it has left all its streams."""
        return all(row.state == "retired" for row in self.rows)

    @property
    def pending_facts(self) -> int:
        """The number of IDs that are reserved and not complete, as its process reported last."""
        return sum(row.pending_facts for row in self.rows)

    @property
    def stuck_facts(self) -> int:
        """The number of pending IDs that should be complete by now.

        They are pending for longer than a short transaction (``YOUNG_SECONDS``) and the report of its end (two
        heartbeats) take.
        """
        news = YOUNG_SECONDS + 2 * stream_settings().heartbeat_seconds
        return sum(row.pending_facts for row in self.rows if (row.pending_seconds or 0.0) >= news)

    @property
    def is_silent(self) -> bool:
        """Returns true if a session holds its name but its process sends no heartbeats: stopped, hanging, or a lost host.

        Such a writer holds linear readers back even with nothing pending: its position stays, and others go on.
        """
        return self.lock is not None and not self.retired and self.silent_seconds > patience_seconds()

    @property
    def process(self) -> str:
        """Its process, as text for a message."""
        return f"process {self.process_id} on host {self.host} ({self.command})" if self.process_id else "its process"


def holding(cursor: Any, writer: str) -> Holding:
    """Returns a writer as it is now. Raises ``UnknownWriter``, which lists the names that exist."""
    cursor.execute(_ROWS, [writer])
    rows = tuple(Row(*row) for row in cursor.fetchall())
    if not rows:
        cursor.execute("SELECT DISTINCT instance_name FROM streams_streamposition ORDER BY 1 LIMIT 50")
        known = ", ".join(row[0] for row in cursor.fetchall())
        raise UnknownWriter(f"There is no writer {writer!r}. Writers: {known or 'none yet'}.")
    cursor.execute(_INSTANCE, [writer])
    _, host, process_id, command, heartbeat_at, silent_seconds = cursor.fetchone() or ("", "", None, "", None, 0.0)
    held = _sessions(cursor, driver.writer_key(cursor, writer))
    found = _sessions(cursor, driver.append_key(cursor, writer))
    old = tuple(one for one in found if (one.open_seconds or 0.0) >= YOUNG_SECONDS)
    lock = held[0] if held else None
    return Holding(writer, host, process_id, command, heartbeat_at, silent_seconds, lock, old, rows)


def _sessions(cursor: Any, key: int) -> list[OpenSession]:
    cursor.execute(_HOLDERS, [key])
    return [OpenSession(*row) for row in cursor.fetchall()]


def ask_to_leave(cursor: Any, writer: str, asked_by: str) -> list[str]:
    """Asks a living writer to drain. Returns the streams that it is going to leave."""
    streams = lease.mark_draining(cursor, writer, asked_by)
    log.info("writer.asked_to_drain", writer=writer, by=asked_by, streams=streams)
    return streams


def end_sessions(cursor: Any, found: Holding, by: str) -> list[OpenSession]:
    """Ends the transactions that were found, and stores a trace. Returns the sessions that were ended.

    A session whose transaction is over by now is left alone.
    """
    ended = []
    for session in found.transactions:
        cursor.execute(_TERMINATE, [_TERMINATE_MS, session.pid, session.transaction_since])
        if (row := cursor.fetchone()) is not None and row[0]:
            ended.append(session)
    if ended:
        _trace(cursor, found, "ended " + "; ".join(map(str, ended)), by)
    return ended


def end_process(cursor: Any, found: Holding, by: str) -> list[Resolution]:
    """Ends the session that holds the writer's lock, then resolves the writer by evidence.

    For a process that does not react. That its session was ended proves nothing: the writer is retired only if both of
    its locks can be had within 5 seconds. Returns an empty list if not, or if another process resolved it first.
    """
    if found.lock is not None:
        cursor.execute(_TERMINATE, [_TERMINATE_MS, found.lock.pid, found.lock.transaction_since])
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
    """Returns true if the writer sent a heartbeat after ``since`` and no longer reports the ended transactions as pending.

    With an empty ``ended``, true if it has no stuck facts.
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
    """Returns the database's clock time."""
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
