"""Builds the snapshot's view of recorded foreign servers. A *record* holds the streams of one foreign server.

The streams and writers in a record look like our own, and are marked as recorded.

One query reads all records, in the same database snapshot as everything else. A record is left out if it ended more than
a day ago, or if its recorder has not reported for more than a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from replsite.snapshot.types import StreamView, WriterView
from replsite.status.verdicts import Limits, RecordingSeen, judge_recording, worst
from streams.runtime.silence import silent_seconds, silent_seconds_sql

__all__ = ["RECORDED", "RecordedRow", "read_recorded", "recorded_streams"]

#: The state of a recorded writer.
RECORDED = "recorded"
MOST_WRITERS = 1_000

_WRITERS = f"""
SELECT s.name, s.server_name, s.address, s.host, s.process_id, s.heartbeat_at, s.ended_at, p.stream, p.instance_name,
    p.position, p.last_fact_position, p.last_fact_at, p.last_advance_at, p.rows_recorded, p.ranges_missed
FROM streams_recordedposition p JOIN streams_recordedserver s ON s.id = p.server_id
WHERE p.is_current AND {silent_seconds_sql("coalesce(s.ended_at, s.heartbeat_at)")} < 86400
ORDER BY s.name, p.stream, p.instance_name LIMIT {MOST_WRITERS}
"""


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """A writer of a foreign server, with the name of the record that holds the server's facts."""

    record: str
    server_name: str
    address: str
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
        """The local name of the stream: ``record/stream``."""
        return f"{self.record}/{self.stream}"


def read_recorded(cursor: Any) -> list[RecordedRow]:
    """Returns all writers of all records that are shown, by record, stream and writer."""
    cursor.execute(_WRITERS)
    return [RecordedRow(*row) for row in cursor.fetchall()]


def recorded_streams(rows: Iterable[RecordedRow], as_of: datetime, limits: Limits) -> list[StreamView]:
    """Returns one view for each recorded stream."""
    by_stream: dict[str, list[RecordedRow]] = {}
    for row in rows:
        by_stream.setdefault(row.stream_name, []).append(row)
    return [_stream(name, found, as_of, limits) for name, found in by_stream.items()]


def _stream(name: str, rows: Sequence[RecordedRow], as_of: datetime, limits: Limits) -> StreamView:
    writers = tuple(sorted((_writer(row, as_of, limits) for row in rows), key=lambda writer: -writer.status.severity))
    return StreamView(
        name=name,
        head=max(row.position for row in rows),
        linear_position=min(row.position for row in rows),
        sequence_value=None,
        last_fact_at=max((row.last_fact_at for row in rows if row.last_fact_at), default=None),
        status=worst((writer.status for writer in writers), writers[0].status),
        writers=writers,
        recorded_from=rows[0].server_name,
    )


def _writer(row: RecordedRow, as_of: datetime, limits: Limits) -> WriterView:
    seen = RecordingSeen(
        record=row.record,
        server_name=row.server_name,
        address=row.address,
        recorder=f"process {row.process_id} on {row.host}",
        heartbeat_age=silent_seconds(as_of, row.heartbeat_at),
        has_ended=row.ended_at is not None,
        ranges_missed=row.ranges_missed,
    )
    return WriterView(
        stream=row.stream_name,
        writer=row.writer,
        position=row.position,
        state=RECORDED,
        behind_facts=0,
        behind_seconds=0.0,
        behind_exact=True,
        last_write_position=row.last_fact_position,
        last_write_at=row.last_fact_at,
        last_advance_at=row.last_advance_at,
        facts_written=row.rows_recorded,
        status=judge_recording(seen, limits),
    )
