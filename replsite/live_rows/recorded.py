"""Reads recorded foreign servers. A *record* holds the streams of one foreign server.

The streams and writers in a record look like our own, and are marked as recorded.

One query reads all records, in the same database snapshot as everything else. A record is left out if it was ended more
than a day ago: by its recorder, or by an operator who forgot it. One whose recorder was killed is shown until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streams.runtime.silence import silent_seconds_sql

MOST_WRITERS = 1_000

_WRITERS = f"""
SELECT s.name, s.server_name, s.address, s.command, s.host, s.process_id, s.heartbeat_at, s.ended_at, coalesce(p.stream, ''),
    coalesce(p.instance_name, 'recorder'), coalesce(p.position, 0), p.last_fact_position, p.last_fact_at,
    coalesce(p.last_advance_at, s.started_at), coalesce(p.rows_recorded, 0), coalesce(p.ranges_missed, 0)
FROM streams_recordedserver s LEFT JOIN streams_recordedposition p ON p.server_id = s.id AND p.is_current
WHERE s.ended_at IS NULL OR {silent_seconds_sql("s.ended_at")} < 86400
ORDER BY s.name, p.stream, p.instance_name LIMIT {MOST_WRITERS}
"""


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """A writer of a foreign server, with the name of the record that holds the server's facts.

    A record that has no writer yet, as its recorder has just begun or was killed early, has one row without a stream.
    """

    record: str
    server_name: str
    address: str
    command: str
    """The words after ``manage.py`` that continue the record; empty: those of ``follow``."""
    host: str
    process_id: int | None
    heartbeat_at: datetime
    ended_at: datetime | None
    stream: str
    writer: str
    position: int
    last_fact_position: int | None
    last_fact_at: datetime | None
    last_advance_at: datetime
    rows_recorded: int
    ranges_missed: int

    @property
    def stream_name(self) -> str:
        return f"{self.record}/{self.stream}" if self.stream else self.record


def read_recorded(cursor: Any) -> list[RecordedRow]:
    """Returns all writers of all records that are shown, by record, stream and writer."""
    cursor.execute(_WRITERS)
    return [RecordedRow(*row) for row in cursor.fetchall()]
