"""Rows of the table of readers: connections of a server and followers tell once a second how far they are.

One statement for any number of readers. Blocking; called by one thread at a time, on a connection of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from streams import database

__all__ = ["ReaderRows"]

#: Name: write the present figures of readers.
UPSERT_READERS = """
INSERT INTO streams_reader AS known (key, name, kind, served_by, address, process_id, connected_at, heartbeat_at,
positions, bytes_in, bytes_out, lines_in, lines_out, buffer_bytes, closed_at, close_reason) SELECT key, name, %(kind)s,
%(served_by)s, address, %(process_id)s, to_timestamp(connected_at), clock_timestamp(), positions, bytes_in, bytes_out,
lines_in, lines_out, buffer_bytes, CASE WHEN close_reason <> '' THEN clock_timestamp() END, close_reason FROM
jsonb_to_recordset(%(rows)s::jsonb) AS given( key text, name text, address text, connected_at double precision,
positions jsonb, bytes_in bigint, bytes_out bigint, lines_in bigint, lines_out bigint, buffer_bytes bigint,
close_reason text) ON CONFLICT (key) DO UPDATE SET name = excluded.name, heartbeat_at = excluded.heartbeat_at,
positions = excluded.positions, bytes_in = excluded.bytes_in, bytes_out = excluded.bytes_out, lines_in =
excluded.lines_in, lines_out = excluded.lines_out, buffer_bytes = excluded.buffer_bytes, served_by =
excluded.served_by, address = excluded.address, process_id = excluded.process_id, connected_at = excluded.connected_at,
closed_at = excluded.closed_at, close_reason = excluded.close_reason
"""

#: Name: forget readers of this kind that ended, or went silent, long ago.
FORGET_READERS = """
DELETE FROM streams_reader
WHERE kind = %(kind)s AND (closed_at < now() - interval '1 hour' OR heartbeat_at < now() - interval '1 day')
"""


class ReaderRows:
    """Writes rows of one kind of reader."""

    def __init__(self, kind: str, served_by: str, using: str) -> None:
        self._constant = {"kind": kind, "served_by": served_by, "process_id": os.getpid()}
        self._using = using
        self._connection: Any = None

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert or update the rows; those with a ``close_reason`` are closed by it. Raises the driver's errors."""
        if rows:
            self._execute(UPSERT_READERS, {"rows": orjson.dumps(list(rows)).decode().replace("\\u0000", "\\ufffd")})

    def forget_old(self) -> None:
        """Remove what nobody looks at any more."""
        self._execute(FORGET_READERS, {})

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            with contextlib.suppress(database.DatabaseError):  # it may be gone already
                self._connection.close()
            self._connection = None

    def _execute(self, sql: str, parameters: Mapping[str, Any]) -> None:
        if self._connection is None:
            self._connection = database.direct_connection(self._using, application_name="replsite readers")
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, {**self._constant, **parameters})
        except database.DatabaseError:
            self.close()
            raise
