"""Writes the table of readers, which has a row for each connection, follower and Spark query (pure).

Each function needs a database cursor of any connection. The caller begins and ends transactions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

#: Inserts readers, or updates the figures of known ones. A reader counts as newly connected if it was closed before, or if
#: another process runs it now.
_STORE = """
INSERT INTO streams_reader AS known (key, name, kind, served_by, address, process_id, connected_at, heartbeat_at, positions,
    bytes_in, bytes_out, lines_in, lines_out, buffer_bytes, closed_at, close_reason,
    waiting_lines, kernel_send_bytes, kernel_read_bytes, queued, error, rights)
SELECT key, name, %(kind)s, %(served_by)s, address, %(process_id)s,
    clock_timestamp() - make_interval(secs => coalesce(connected_seconds, 0)), clock_timestamp(), positions,
    coalesce(bytes_in, 0), coalesce(bytes_out, 0), coalesce(lines_in, 0), coalesce(lines_out, 0), coalesce(buffer_bytes, 0),
    CASE WHEN close_reason <> '' THEN clock_timestamp() END, coalesce(close_reason, ''),
    coalesce(waiting_lines, 0), coalesce(kernel_send_bytes, 0), coalesce(kernel_read_bytes, 0), coalesce(queued, '{}'),
    coalesce(error, ''), rights
FROM jsonb_to_recordset(%(rows)s::jsonb) AS given (key text, name text, address text, connected_seconds double precision,
    positions jsonb, bytes_in bigint, bytes_out bigint, lines_in bigint, lines_out bigint, buffer_bytes bigint,
    close_reason text, waiting_lines bigint, kernel_send_bytes bigint, kernel_read_bytes bigint, queued jsonb, error text,
    rights jsonb)
ON CONFLICT (key) DO UPDATE SET name = excluded.name, heartbeat_at = excluded.heartbeat_at, positions = excluded.positions,
    bytes_in = excluded.bytes_in, bytes_out = excluded.bytes_out, lines_in = excluded.lines_in,
    lines_out = excluded.lines_out, buffer_bytes = excluded.buffer_bytes, waiting_lines = excluded.waiting_lines,
    kernel_send_bytes = excluded.kernel_send_bytes, kernel_read_bytes = excluded.kernel_read_bytes,
    queued = excluded.queued, rights = excluded.rights, served_by = excluded.served_by,
    address = excluded.address, process_id = excluded.process_id,
    connected_at = CASE WHEN known.process_id IS DISTINCT FROM excluded.process_id OR known.closed_at IS NOT NULL
                        THEN excluded.connected_at ELSE known.connected_at END,
    closed_at = excluded.closed_at, close_reason = excluded.close_reason, error = excluded.error,
    disconnect_asked_by = CASE WHEN known.closed_at IS NULL THEN known.disconnect_asked_by ELSE '' END
RETURNING key, CASE WHEN closed_at IS NULL THEN disconnect_asked_by ELSE '' END
"""
#: Most closed readers that are kept. A client that keeps reconnecting leaves a row each time.
CLOSED_READERS_KEPT = 1_000
#: Prefix of a named reader's key. A named reader has stored cursors, here or in the database that its handlers write.
NAMED = "reader "
#: Prefix of the key of a Spark query, whose cursor is in its checkpoint.
QUERY = "spark:"
#: Deletes readers that ended or fell silent long ago, and the oldest closed ones if there are too many. Named readers and
#: Spark queries stay until an operator removes them: what is stored of their cursors goes on some day. Until then the row of a
#: query is all that keeps trimming from its facts (``streams.maintenance.trim``, which asks for the last week).
_FORGET = f"""
DELETE FROM streams_reader WHERE left(key, {len(NAMED)}) <> '{NAMED}' AND kind <> 'spark' AND (
    closed_at < now() - interval '1 hour' OR heartbeat_at < now() - interval '1 day'
    OR key IN (SELECT key FROM streams_reader WHERE closed_at IS NOT NULL ORDER BY closed_at DESC OFFSET %(kept)s))
"""
_REMOVE = "DELETE FROM streams_reader WHERE key = %(key)s"


def store_readers(
    cursor: Any, kind: str, process_id: int, rows: Sequence[Mapping[str, Any]], served_by: str = ""
) -> dict[str, str]:
    """Inserts or updates the rows of readers that have the same kind and process, in one statement.

    Returns ``{key: operator}`` for the readers that an operator asked to disconnect.

    Each row in ``rows`` must have ``key``, ``name``, ``address`` and ``positions``. The positions are positive, and
    ordered by stream and writer: ``{stream: {writer: position}}``. A row may also have the counters, and these values:

    * ``connected_seconds``: a duration and not a time, because the clocks of hosts differ.
    * ``close_reason``: marks the reader as closed.
    * ``error``: the error that ended the reader.
    * ``rights``: what the reader's certificate may do.
    """
    text = orjson.dumps(list(rows)).decode().replace("\\u0000", "\\ufffd")  # jsonb takes no NUL
    cursor.execute(_STORE, {"kind": kind, "served_by": served_by, "process_id": process_id, "rows": text})
    return {key: by for key, by in cursor.fetchall() if by}


def forget_readers(cursor: Any) -> None:
    """Deletes readers that ended over an hour ago, or that were silent for a day.

    If more than ``CLOSED_READERS_KEPT`` closed readers are left, also deletes the readers that were closed first. Named
    readers and Spark queries stay.
    """
    cursor.execute(_FORGET, {"kept": CLOSED_READERS_KEPT})


def remove_reader(cursor: Any, key: str) -> None:
    cursor.execute(_REMOVE, {"key": key})
