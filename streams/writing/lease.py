"""The SQL by which a process takes a writer name, enters streams and leaves them.

A lease is a counter that each new holder of the name raises. The functions need a cursor of a direct connection. ``take``
needs autocommit mode, because its locks are session locks and its row must be visible to others at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from streams.core.bound import BoundStream
from streams.core.names import check_name, is_pattern, numbered_name
from streams.db import driver
from streams.errors import WriterBusy, WriterNameTaken
from streams.reading.position_notifications import CHANNEL, notify_position
from streams.writing import append_lock

__all__ = [
    "ACTIVE_STREAMS",
    "Held",
    "Identity",
    "describe_lock_holder",
    "end",
    "hold_positions",
    "lock_start",
    "mark_draining",
    "store_entry",
    "take",
    "wait_for_open_transactions",
]

_MOST_NUMBERS = 10_000
_ENDING_SECONDS = 1.0
_TRY_AGAIN_SECONDS = 0.05
_LOOK_SECONDS = 0.01
_LOCK_NOT_AVAILABLE = "55P03"

#: Streams that a writer has not left.
ACTIVE_STREAMS = (
    "SELECT stream FROM streams_streamposition WHERE instance_name = %s AND state <> 'retired' ORDER BY stream"
)
_SESSION = "SELECT a.pid, coalesce(host(a.client_addr), 'local'), a.application_name, a.state, a.xact_start, a.usename"
_HOLDER = f"{_SESSION} {driver.LOCK_HOLDERS} LIMIT 1"
_APPENDING = f"{_SESSION} {append_lock.HOLDERS} LIMIT 1"


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of the process that holds a name. The identity is stored with the name.

    If a second process tries to take the name, the error message of the second process shows the stored identity.
    """

    host: str
    process_id: int
    command: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """A writer name that this process holds, and the lease under which it holds the name."""

    name: str
    lease: int
    append_key: int
    """Key of the append lock, which each transaction that appends under the lease holds, shared."""


def take(cursor: Any, pattern: str, identity: Identity, timeout_seconds: float) -> Held:
    """Takes a writer name, and waits until no transaction of an earlier holder is open.

    If ``pattern`` contains ``{n}``, takes the name with the lowest free number. Raises ``WriterNameTaken``, which says who
    holds the name. Raises ``WriterBusy``, which describes the open transaction, if the wait takes longer than
    ``timeout_seconds``. Raises ``BadInstanceName`` for a text that cannot be a name.
    """
    check_name(pattern)
    # The order is: writer lock, new lease, look at the append lock. Suppose that A, the earlier holder, does not know yet that
    # its lock is gone. If A took the append lock before the last look, the look finds A's transaction. If A takes it later, A
    # reads the new lease and is refused.
    name = _lock_free_name(cursor, pattern)
    cursor.execute(
        """
        INSERT INTO streams_instance AS held (name, lease, state, host, process_id, lock_backend_pid, version, command,
                                              started_at, heartbeat_at)
        VALUES (%s, 1, 'active', %s, %s, pg_backend_pid(), %s, %s, clock_timestamp(), clock_timestamp())
        ON CONFLICT (name) DO UPDATE SET lease = held.lease + 1, state = 'active', host = excluded.host,
            process_id = excluded.process_id, lock_backend_pid = excluded.lock_backend_pid, version = excluded.version,
            command = excluded.command, started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at,
            drain_asked_by = ''
        RETURNING lease
        """,
        [name, identity.host, identity.process_id, identity.version, identity.command],
    )
    lease = cursor.fetchone()[0]
    wait_for_open_transactions(cursor, name, timeout_seconds)
    return Held(name, lease, driver.append_key(cursor, name))


def _lock_free_name(cursor: Any, pattern: str) -> str:
    candidates = [numbered_name(pattern, n) for n in range(1, _MOST_NUMBERS)] if is_pattern(pattern) else [pattern]
    for name in candidates:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [driver.writer_key(cursor, name)])
        if cursor.fetchone()[0]:
            return name
    # The lock may be free in a moment: the session of the last holder may still be ending, or another process may hold the lock
    # only to see whether the writer is dead.
    if not is_pattern(pattern) and _lock_in_time(cursor, driver.writer_key(cursor, pattern), _ENDING_SECONDS):
        return pattern
    holder = describe_lock_holder(cursor, driver.writer_key(cursor, candidates[0]))
    raise WriterNameTaken(
        f"Writer name {pattern!r} is taken: {_describe_instance(cursor, candidates[0])}{holder}. Stop that process, or give "
        f"this one another name with REPLSITE_INSTANCE (a pattern such as web-{{n}} takes the lowest free number)."
    )


def _describe_instance(cursor: Any, name: str) -> str:
    cursor.execute("SELECT process_id, host, started_at, command FROM streams_instance WHERE name = %s", [name])
    row = cursor.fetchone()
    return (
        f"process {row[0]} on host {row[1]} ({row[3]}) holds it since {row[2]:%Y-%m-%d %H:%M:%S}"
        if row
        else "it is locked"
    )


def describe_lock_holder(cursor: Any, key: int) -> str:
    """Describes the session that holds a lock, as a text for a message. Returns an empty text if the lock is free.

    The text is `` (database session PID from ADDRESS, APPLICATION, STATE)``. PostgreSQL hides the address and state of
    another role's session. For such a session the text is `` (database session PID of role ROLE)``.
    """
    cursor.execute(_HOLDER, [key])
    return _describe_session(cursor.fetchone())


def _describe_session(row: Any) -> str:
    if row is None:
        return ""
    if row[0] is None:
        return " (a prepared transaction, which ROLLBACK PREPARED ends, or a session that is ending)"
    if row[3] is None:
        return f" (database session {row[0]} of role {row[5]})"
    since = f", transaction open since {row[4]:%H:%M:%S}" if row[4] else ""
    return f" (database session {row[0]} from {row[1]}, {row[2]!r}, {row[3]}{since})"


def wait_for_open_transactions(cursor: Any, name: str, timeout_seconds: float) -> None:
    """Waits until no transaction of an earlier holder of the name is open.

    The caller must have raised the lease and committed before. Raises ``WriterBusy`` after ``timeout_seconds``.
    """
    key, deadline = driver.append_key(cursor, name), time.monotonic() + timeout_seconds
    while append_lock.is_held(cursor, key):
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_SECONDS)
    else:
        return
    cursor.execute(_APPENDING, {"key": key})
    holder = _describe_session(cursor.fetchone())
    raise WriterBusy(
        f"Writer {name!r} cannot start: a transaction of an earlier process with this name is still open after "
        f"{timeout_seconds:g} s{holder}. Wait for it, or end it: manage.py streams abort {name}."
    )


def _lock_in_time(cursor: Any, key: int, seconds: float) -> bool:
    """Takes a session lock. Returns false if the lock is still not free after ``seconds``."""
    cursor.execute(f"SET lock_timeout = {max(1, int(seconds * 1000))}")
    try:
        cursor.execute("SELECT pg_advisory_lock(%s)", [key])
    except driver.OperationalError as error:
        if driver.sqlstate(error) != _LOCK_NOT_AVAILABLE:
            raise
        return False
    finally:
        if not cursor.connection.closed:
            cursor.execute("SET lock_timeout = 0")
    return True


def lock_start(cursor: Any, stream: str, seconds: float = 0.0) -> bool:
    """Takes the start lock of a stream until the end of the transaction. Writers hold this lock while they enter a stream.

    Returns false if another session still holds the lock after this number of seconds.
    """
    key, deadline = driver.start_key(cursor, stream), time.monotonic() + seconds
    while True:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [key])
        if cursor.fetchone()[0]:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_TRY_AGAIN_SECONDS)


def store_entry(cursor: Any, stream: BoundStream, name: str, position: int) -> None:
    """Stores that a writer enters a stream at this (positive) position, and notifies readers.

    If the writer already has a row, the row becomes active again and its position never goes down. Must be called in
    the transaction that read the ``StreamFindings`` from which ``position`` was computed.
    """
    cursor.execute(
        """
        INSERT INTO streams_streamposition AS p (stream, instance_name, position)
        VALUES (%(stream)s, %(name)s, %(position)s)
        ON CONFLICT (stream, instance_name) DO UPDATE SET
            position = CASE WHEN abs(excluded.position) > abs(p.position) THEN excluded.position ELSE p.position END,
            state = 'active', pending_facts = 0, oldest_pending_id = NULL, oldest_pending_at = NULL,
            oldest_pending_transaction = NULL, updated_at = clock_timestamp()
        """,
        {"stream": stream.name, "name": name, "position": position * stream.sign},
    )
    notify_position(cursor, stream.name, name, position)


def hold_positions(cursor: Any, stream: str) -> list[tuple[str, str, int]]:
    """Returns (writer, state, positive position) of all writers of a stream.

    Locks their rows (FOR SHARE) until the transaction ends, so that no position changes meanwhile.
    """
    cursor.execute(
        "SELECT instance_name, state, abs(position) FROM streams_streamposition WHERE stream = %s "
        "ORDER BY instance_name FOR SHARE",
        [stream],
    )
    rows: list[tuple[str, str, int]] = cursor.fetchall()
    return rows


def mark_draining(cursor: Any, name: str, asked_by: str) -> list[str]:
    """Marks a writer as draining. Returns the streams that the writer has not left.

    The writer's own process calls this function in order to leave. A command calls it if an operator asks the writer to
    leave. Sends a notification, so that the writer's process reads its row at once, and not only at its next heartbeat.
    Must be called in autocommit mode. Does nothing to a writer that is retired already.
    """
    cursor.execute(
        """
        WITH asked AS (
            UPDATE streams_instance SET state = 'draining',
                drain_asked_by = CASE WHEN %(by)s = '' THEN drain_asked_by ELSE %(by)s END
            WHERE name = %(name)s AND state <> 'retired' RETURNING name
        ), marked AS (
            UPDATE streams_streamposition p SET state = 'draining', updated_at = clock_timestamp()
            FROM asked WHERE p.instance_name = asked.name AND p.state <> 'retired' RETURNING p.stream
        )
        SELECT stream, pg_notify(%(channel)s, stream || ' ' || %(name)s) FROM marked ORDER BY stream
        """,
        {"name": name, "by": asked_by, "channel": driver.channel(cursor, CHANNEL)},
    )
    return [row[0] for row in cursor.fetchall()]


def end(cursor: Any, name: str, lease: int) -> None:
    """Ends the lease, so that no reservation gets IDs under this lease from now on.

    Does nothing if the lease has ended already.
    """
    cursor.execute(
        "UPDATE streams_instance SET lease = lease + 1, state = 'retired' WHERE name = %s AND lease = %s", [name, lease]
    )
