"""What a snapshot tells, as plain data (pure): streams, writers and readers with their status words.

Every field is plain, so a snapshot can be compared, made by hand in a test, and turned into JSON. Ages and lag are as of
the snapshot's own time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from replsite.status.verdicts import Health, Severity, Verdict

__all__ = [
    "AcknowledgedView",
    "CountView",
    "ExpectedView",
    "JobFigures",
    "JobStatusView",
    "JobsView",
    "QueryFigures",
    "ReaderStreamView",
    "ReaderView",
    "RoomSizeView",
    "Snapshot",
    "StorageView",
    "StreamView",
    "SyncingView",
    "TableView",
    "WaitingView",
    "WorkersView",
    "WriterView",
    "as_json",
]


@dataclass(frozen=True, slots=True)
class WriterView:
    """A writer on one stream."""

    stream: str
    writer: str
    position: int
    state: str
    pending_facts: int
    oldest_pending_at: datetime | None
    oldest_pending_seconds: float | None
    oldest_pending_transaction: int | None
    oldest_pending_session: str
    behind_facts: int
    behind_seconds: float
    behind_exact: bool
    last_write_position: int | None
    last_write_at: datetime | None
    last_advance_at: datetime
    facts_written: int
    facts_rolled_back: int
    facts_resolved: int
    heartbeat_at: datetime | None
    heartbeat_seconds: float | None
    host: str
    process_id: int | None
    command: str
    status: Verdict
    """Single complete IDs that its process keeps above the linear position, while they are many."""
    row_id: int | None = None
    """Key of its row in ``streams_streamposition``; None: it has none there."""
    version: str = ""
    lease: int = 0
    """Number of its lease: one more for each process that held its name, and each time that one lost its lock."""
    started_at: datetime | None = None
    """When its process began to write; the process's version and time, not the writer's."""
    oldest_pending_query_at: datetime | None = None
    """When the session that holds the oldest pending transaction open began its last query."""
    facts_per_second: float | None = None
    """Over the last half minute; None: it was not watched long enough."""
    recent: tuple[float | None, ...] = ()
    """Facts per second in the last five minutes, as far as this process watched it; empty: none at all."""


@dataclass(frozen=True, slots=True)
class ExpectedView:
    """A name or pattern of REPLSITE_EXPECTED_WRITERS on one stream."""

    stream: str
    writer: str
    living: int
    facts_last_hour: int | None
    least_per_hour: float | None
    status: Verdict


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream: how far it is, and its writers, worst first."""

    name: str
    head: int
    linear_position: int
    sequence_value: int | None
    last_fact_at: datetime | None
    status: Verdict
    writers: tuple[WriterView, ...]
    retired_before: int = 0
    """Writers that retired so long ago, or are so many, that they are not listed any more."""
    recorded_from: str = ""
    """The foreign server that the stream is recorded from; empty for our own."""
    recent: tuple[float | None, ...] = ()
    """Facts per second in the last five minutes, by steps (``replsite.status.series``), oldest first; empty: none at all."""
    expected: tuple[ExpectedView, ...] = ()
    """Writers that have to be there, worst first."""


@dataclass(frozen=True, slots=True)
class ReaderStreamView:
    """A reader on one stream; ``lag_seconds`` is the age of the oldest fact that it has not read, 0 when there is none."""

    stream: str
    positions: Mapping[str, int]
    position: int
    lag_facts: int
    lag_exact: bool
    lag_seconds: float
    unmoved_seconds: float | None
    status: Verdict
    lag_change_per_second: float | None = None
    """Facts; above 0 it falls behind. None: not watched long enough."""
    seconds_to_current: float | None = None
    """At the present rate; None: it has no lag, or its lag does not fall."""
    recent: tuple[float | None, ...] = ()
    """Highest lag in facts in the last five minutes, by steps, oldest first; empty: there was none."""
    error: str = ""
    """What stopped a named reader here, until its cursor moves again."""
    parked_facts: int = 0
    """Facts that its handler could not take and that were put aside."""
    parked_exact: bool = True
    """False: there are more."""
    parked_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class WaitingView:
    """What waits on its way to a reader: lines for its connection, bytes in the system's buffers, rows to be handled."""

    lines: int = 0
    kernel_send_bytes: int = 0
    kernel_read_bytes: int = 0
    queued: Mapping[str, int] = field(default_factory=dict)
    """Stream -> rows that the reader has received and not handled."""


@dataclass(frozen=True, slots=True)
class ReaderView:
    """A reader or connection and the streams that it follows, worst first.

    A connection's positions are what was sent to it, a follower's and a Spark query's what it has handled.
    """

    key: str
    name: str
    kind: str
    served_by: str
    address: str
    process_id: int | None
    connected_at: datetime
    heartbeat_at: datetime
    heartbeat_seconds: float
    bytes_in: int
    bytes_out: int
    lines_in: int
    lines_out: int
    buffer_bytes: int
    closed_at: datetime | None
    close_reason: str
    lag_facts: int
    lag_seconds: float
    status: Verdict
    streams: tuple[ReaderStreamView, ...]
    bytes_in_per_second: float | None = None
    bytes_out_per_second: float | None = None
    """Over the last half minute; None: it was not watched long enough."""
    seconds_to_overflow: float | None = None
    """Until its unsent bytes reach the limit and it is closed as slow, if they grow as they do; None: they do not."""
    waiting: WaitingView = WaitingView()
    runs: bool = True
    """False: a named reader that has stored cursors, and that no process runs now."""
    has_row: bool = True
    """It has a row in ``streams_reader``; otherwise only its cursors are known."""


@dataclass(frozen=True, slots=True)
class SyncingView:
    """Users that sync on one worker process; ``name`` is what its connection calls itself, ``worker`` its random ID."""

    name: str
    worker: str
    address: str
    users: int
    last_news_at: datetime


@dataclass(frozen=True, slots=True)
class AcknowledgedView:
    """Up to where a federation sender has taken the stream ``federation``."""

    instance: str
    token: int
    acknowledged_at: datetime


@dataclass(frozen=True, slots=True)
class CountView:
    """How often something happened on the wire: ``kind`` is closed, refused, command or dropped."""

    kind: str
    name: str
    total: int


@dataclass(frozen=True, slots=True)
class WorkersView:
    """What workers reported, on all servers. ``addresses``: users' addresses that are kept."""

    users_syncing: int = 0
    syncing: tuple[SyncingView, ...] = ()
    acknowledged: tuple[AcknowledgedView, ...] = ()
    addresses: int = 0
    addresses_exact: bool = True
    counts: tuple[CountView, ...] = ()

    def counted(self, kind: str) -> dict[str, int]:
        """Totals of one kind by name."""
        return {count.name: count.total for count in self.counts if count.kind == kind}


@dataclass(frozen=True, slots=True)
class JobStatusView:
    """A job that waits, is at work, or ended within a day. ``done``, ``total`` and ``rate`` are of its stage, in ``unit``."""

    id: int
    kind: str
    asked_by: str
    stage: str
    unit: str
    done: int
    total: int | None
    rate: float | None
    seconds_left: float | None
    queued_at: datetime | None
    began_at: datetime | None
    ended_at: datetime | None
    status: Verdict


@dataclass(frozen=True, slots=True)
class JobFigures:
    """When jobs of a kind last went well, and last failed."""

    kind: str
    last_success_at: datetime | None
    last_failure_at: datetime | None


@dataclass(frozen=True, slots=True)
class QueryFigures:
    """What a query of the live pipeline has taken: batches since its tables were made, and when the last one."""

    query: str
    batches: int
    applied_at: datetime


@dataclass(frozen=True, slots=True)
class JobsView:
    """Jobs, worst first, each kind's last ends, and the queries of the live pipeline."""

    jobs: tuple[JobStatusView, ...] = ()
    kinds: tuple[JobFigures, ...] = ()
    queries: tuple[QueryFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class TableView:
    """A table: rows as PostgreSQL estimates, bytes with indexes; None: not known.

    ``grown_bytes`` and ``grown_rows``: since ``grown_since``, a day ago or as long as history reaches.
    """

    name: str
    rows: int | None
    size_bytes: int
    grown_bytes: int | None = None
    grown_rows: int | None = None
    grown_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class RoomSizeView:
    """A big room, as the live pipeline counted it."""

    room_id: str
    events: int
    history: int
    members: int
    state_entries: int
    last_event_at: datetime | None


@dataclass(frozen=True, slots=True)
class StorageView:
    """What lies in the database, read no more often than each minute; ``tables``: the largest ones."""

    as_of: datetime
    database: TableView
    tables: tuple[TableView, ...] = ()
    state_groups: int | None = None
    state_group_rows: int | None = None
    """Rows of all state groups, stored as deltas."""
    state_bytes: int = 0
    unreferenced_groups: int | None = None
    """State groups that no event has and nothing is built on."""
    unreferenced_exact: bool = True
    """False: estimated from a sample, since there are many groups."""
    rooms: tuple[RoomSizeView, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment of the database's clock."""

    as_of: datetime
    version: str
    health: Health
    streams: tuple[StreamView, ...]
    readers: tuple[ReaderView, ...]
    workers: WorkersView = WorkersView()
    jobs: JobsView = JobsView()
    storage: StorageView | None = None

    def stream(self, name: str) -> StreamView:
        """The stream of that name; raises ``KeyError``."""
        return {stream.name: stream for stream in self.streams}[name]


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as plain JSON values; times are ISO 8601 in UTC."""
    plain: dict[str, Any] = _plain(asdict(snapshot))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: value.name.lower() if isinstance(value, Severity) else _plain(value) for key, value in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else value
