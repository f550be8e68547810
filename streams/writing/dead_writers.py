"""Resolves dead writers, by evidence and never by a timeout alone.

A process locks its writer's name for life. Every transaction that appends as this writer holds the append lock, shared.
If the first lock is free, the process is gone. If the second can then be had exclusively, no transaction of it is open,
on any host. Its reserved IDs are then complete by proof: committed rows are in the tables, and no further row can appear
under them.

Silence (an old heartbeat) only decides *when to look*.
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

__all__ = ["Resolution", "Trace", "leave_trace", "resolve_dead_writers", "resolve_writer", "retire_streams"]

log = get_logger(__name__)

_SILENT = f"""
SELECT DISTINCT i.name FROM streams_instance i JOIN streams_streamposition p ON p.instance_name = i.name
WHERE p.state <> 'retired' AND i.name <> %(by)s
  AND (i.heartbeat_at IS NULL OR {silent_seconds_sql("i.heartbeat_at")} > %(silent)s)
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
    """The action, the evidence and the initiator (a process or an operator) that are stored in a trace row."""

    action: str
    evidence: str
    by: str

    @classmethod
    def drained(cls, asked_by: str) -> Trace:
        """Returns the trace of a writer that left because it was asked to."""
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
    """Looks at writers that were silent for three heartbeats, and retires those that are proven dead.

    ``cursor`` belongs to a direct connection in autocommit mode, because its locks are session locks. A writer that calls
    this on its own control connection gives its name as ``resolved_by`` and is left out: its own locks would be granted
    to it.
    """
    cursor.execute(_SILENT, {"silent": 3 * stream_settings().heartbeat_seconds, "by": resolved_by})
    resolutions: list[Resolution] = []
    for (name,) in cursor.fetchall():
        resolutions += resolve_writer(cursor, name, resolved_by)
    return resolutions


def resolve_writer(cursor: Any, name: str, resolved_by: str) -> list[Resolution]:
    """Retires one writer if it is proven dead.

    An empty list means that its process lives, that a transaction of it is open, or that it has left all streams already.
    """
    # The writer lock first: while it is held here, no process can take the name and begin transactions. The append lock
    # then shows that no earlier transaction is open. Neither waits: a lock that is not free means that the writer is not
    # proven dead.
    keys = driver.writer_key(cursor, name), driver.append_key(cursor, name)
    held = []
    try:
        for key in keys:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [key])
            if not cursor.fetchone()[0]:
                return []
            held.append(key)
        return _retire(cursor, name, resolved_by)
    finally:
        for key in held:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [key])


def _retire(cursor: Any, name: str, resolved_by: str) -> list[Resolution]:
    """Retires the writer on all streams. The caller holds both of its locks."""
    # First a new lease, so that a process that lost its lock without knowing it gets no more IDs. Only then are the positions
    # read from the tables: they cover every row that it will ever have committed.
    cursor.execute("UPDATE streams_instance SET lease = lease + 1, state = 'retired' WHERE name = %s", [name])
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
    """Retires a writer on those streams (all by default) in one transaction, and notifies readers.

    Must be called when its lease has ended and no transaction of it is open. Then every ID that it reserved is complete,
    so its position may cover every committed row. With ``trace``, a trace row is stored for each stream.
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
