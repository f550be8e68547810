"""Retires dead writers, by evidence and never by a timeout alone. This is called *resolving* a writer.

A process holds the writer lock on its name while it lives. Every transaction that appends as this writer holds the
append lock in shared mode. If the writer lock is free, the process is gone. Then the lease of the name is raised. If no
session holds the append lock after that, no transaction of the writer is open on any host. That proves that all IDs
that the writer reserved are complete: committed rows are in the tables, and no further row can appear under these IDs.

An old heartbeat only decides *when* a writer is examined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streams.conf import stream_settings
from streams.core import lookup
from streams.db import driver
from streams.reading.position_notifications import notify_position
from streams.runtime.logs import get_logger
from streams.runtime.silence import silent_seconds_sql
from streams.writing import append_lock

__all__ = [
    "SILENT_WRITERS",
    "Resolution",
    "Trace",
    "leave_trace",
    "resolve_dead_writers",
    "resolve_writer",
    "retire_streams",
]

log = get_logger(__name__)

#: The writers, except the one named ``by``, that write a stream and sent no heartbeat for ``silent`` seconds.
SILENT_WRITERS = f"""
SELECT i.name FROM streams_instance i
WHERE i.name <> %(by)s::text AND (i.heartbeat_at IS NULL OR {silent_seconds_sql("i.heartbeat_at")} > %(silent)s::float8)
  AND EXISTS (SELECT FROM streams_streamposition p WHERE p.instance_name = i.name AND p.state <> 'retired')
"""
_RETIRE = """
UPDATE streams_streamposition SET state = 'retired',
    position = CASE WHEN abs(%(position)s) > abs(position) THEN %(position)s ELSE position END,
    facts_resolved = facts_resolved + pending_facts,
    pending_facts = 0, oldest_pending_id = NULL, oldest_pending_at = NULL, oldest_pending_transaction = NULL,
    last_advance_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE stream = %(stream)s AND instance_name = %(name)s
"""
_ACTIVE = """
SELECT stream, position FROM streams_streamposition
WHERE instance_name = %(name)s AND state <> 'retired' AND (%(streams)s::text[] IS NULL OR stream = ANY(%(streams)s::text[]))
"""
_TRACE = """
INSERT INTO streams_writerresolution (stream, instance_name, from_position, to_position, action, evidence, resolved_by)
VALUES (%(stream)s, %(name)s, %(before)s, %(position)s, %(action)s, %(evidence)s, %(by)s)
"""
EVIDENCE = "writer lock free (process gone) and append lock free (no open transaction)"


@dataclass(frozen=True, slots=True)
class Trace:
    """The content of a trace row: what was done to a writer, by what evidence, and by which process or operator."""

    action: str
    evidence: str
    by: str

    @classmethod
    def drained(cls, asked_by: str) -> Trace:
        """Returns the trace for a writer that ``asked_by`` asked to leave, and that has left."""
        return cls(
            "drained", "nothing reserved any more, lease ended and append lock free (no open transaction)", asked_by
        )


@dataclass(frozen=True, slots=True)
class Resolution:
    """A dead writer on one stream, retired from one (positive) position to another."""

    stream: str
    writer: str
    from_position: int
    to_position: int


def resolve_dead_writers(cursor: Any, resolved_by: str) -> list[Resolution]:
    """Examines the writers that sent no heartbeat for three intervals, and retires the writers that are proven dead.

    ``cursor`` must belong to a direct connection in autocommit mode, because the locks are session locks. A writer that
    passes its own control connection must pass its name as ``resolved_by``. Then the writer itself is not examined.
    Otherwise its session would get its own locks, and so prove the writer dead.
    """
    cursor.execute(SILENT_WRITERS, {"silent": 3 * stream_settings().heartbeat_seconds, "by": resolved_by})
    return [done for (name,) in cursor.fetchall() for done in resolve_writer(cursor, name, resolved_by)]


def resolve_writer(cursor: Any, name: str, resolved_by: str) -> list[Resolution]:
    """Retires one writer if it is proven dead. Returns what was done, one entry for each stream.

    Returns an empty list if the writer's process lives, if one of its transactions is open, or if it has already left all
    its streams.
    """
    # The writer lock is taken first: while it is held here, no process can take the name and begin transactions. Then the lease
    # is raised, so that a process that does not know that it lost its lock gets no more IDs. Only then does the append lock
    # show that no earlier transaction is open. Nothing here waits: otherwise the writer is not proven dead.
    key = driver.writer_key(cursor, name)
    cursor.execute("SELECT pg_try_advisory_lock(%s)", [key])
    if not cursor.fetchone()[0]:
        return []
    try:
        cursor.execute("UPDATE streams_instance SET lease = lease + 1 WHERE name = %s", [name])
        if append_lock.is_held(cursor, driver.append_key(cursor, name)):
            return []
        return _retire(cursor, name, resolved_by)
    finally:
        cursor.execute("SELECT pg_advisory_unlock(%s)", [key])


def _retire(cursor: Any, name: str, resolved_by: str) -> list[Resolution]:
    """Retires the writer on all its streams.

    The caller must hold the writer lock, must have raised the lease, and must then have found the append lock free. So the
    tables hold every row that this writer will ever have committed.
    """
    cursor.execute("UPDATE streams_instance SET state = 'retired' WHERE name = %s", [name])
    resolutions = retire_streams(cursor, name, trace=Trace("resolved", EVIDENCE, resolved_by))
    for done in resolutions:
        log.warning(
            "writer.resolved_dead", stream=done.stream, writer=name, was=done.from_position, now=done.to_position,
            evidence=EVIDENCE, by=resolved_by,
        )  # fmt: skip
    return resolutions


def retire_streams(
    cursor: Any, name: str, streams: Sequence[str] | None = None, trace: Trace | None = None
) -> list[Resolution]:
    """Retires a writer on these streams (by default all its streams) in one transaction, and notifies readers.

    The caller must know that the writer's lease has ended and that none of its transactions is open. Then every ID that
    the writer reserved is complete, so its position may cover every committed row. If ``trace`` is given, a trace row is
    stored for each stream.
    """
    done: list[Resolution] = []
    with driver.in_transaction(cursor):
        cursor.execute(_ACTIVE, {"name": name, "streams": None if streams is None else list(streams)})
        for stream_name, before in cursor.fetchall():
            resolution = _retire_on(cursor, name, stream_name, before)
            if trace is not None:
                leave_trace(cursor, resolution, trace)
            done.append(resolution)
    return done


def _retire_on(cursor: Any, name: str, stream_name: str, stored: int) -> Resolution:
    position = abs(stored)
    if stream_name in lookup.names():  # else the stream is of another program, and its tables are unknown here
        position = max(position, lookup.get(stream_name).table_maximum(cursor))
    sign = _sign(stream_name)
    cursor.execute(_RETIRE, {"stream": stream_name, "name": name, "position": position * sign})
    notify_position(cursor, stream_name, name)
    return Resolution(stream_name, name, abs(stored), position)


def leave_trace(cursor: Any, done: Resolution, trace: Trace) -> None:
    """Stores a row that says what was done to a writer on a stream."""
    sign = _sign(done.stream)
    values = {"before": done.from_position * sign, "position": done.to_position * sign, "by": trace.by}
    who = {"stream": done.stream, "name": done.writer, "action": trace.action, "evidence": trace.evidence}
    cursor.execute(_TRACE, values | who)


def _sign(stream_name: str) -> int:
    return lookup.get(stream_name).sign if stream_name in lookup.names() else 1
