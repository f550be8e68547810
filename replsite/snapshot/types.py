"""Data classes of the snapshot (pure): streams, writers and readers with their status words.

All fields are plain values. A snapshot can be compared, built by hand in a test, and turned into JSON. Ages and lags
refer to the time of the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from replsite.status.verdicts import Health, Severity, Verdict
from streams.reading.reader_table import NAMED

__all__ = [
    "AcknowledgedView",
    "CountView",
    "ExpectedView",
    "HolderView",
    "JobFigures",
    "JobStatusView",
    "JobsView",
    "QueryFigures",
    "ReaderStreamView",
    "ReaderView",
    "RightsView",
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
    """A writer on one stream. Ages are in seconds.

    ``behind_facts`` is the number of facts above the writer's position, and ``behind_seconds`` the age of the oldest of
    these facts. Linear readers wait for them. If ``behind_exact`` is false, the number is an estimate. ``held_by`` is the
    oldest open append that may be this writer's, in words. It is empty if there is none.
    """

    stream: str
    writer: str
    position: int
    state: str
    behind_facts: int
    behind_seconds: float
    behind_exact: bool
    last_write_position: int | None
    last_write_at: datetime | None
    last_advance_at: datetime
    facts_written: int
    status: Verdict
    row_id: int | None = None
    """Key of its row in ``streams_streamposition``. None: a recorded writer has no row there."""
    facts_per_second: float | None = None
    """Over the last half minute. None: not watched long enough."""
    recent: tuple[float | None, ...] = ()
    """Facts per second in the last five minutes, or since this process began to watch the writer. Empty: no facts at all."""
    held_since: datetime | None = None
    held_seconds: float | None = None
    held_by: str = ""


@dataclass(frozen=True, slots=True)
class HolderView:
    """An open append that holds a stream back at ``bound``: a session with its process ``pid``, or a prepared transaction.

    Texts are empty if they are not known. Of ``statement``, texts in quotes are left out, because they may be private.
    """

    pid: int | None
    prepared: str
    since: datetime | None
    seconds: float | None
    """Since its transaction began. If the database hides that: since this process saw it first."""
    state: str
    role: str
    application: str
    client: str
    statement: str
    bound: int
    status: Verdict

    @property
    def name(self) -> str:
        """Its session or prepared transaction, in a few words."""
        if self.prepared:
            return f"prepared transaction {self.prepared}"
        return "a session that is ending" if self.pid is None else f"session {self.pid}"


@dataclass(frozen=True, slots=True)
class ExpectedView:
    """A name or pattern of REPLSITE_EXPECTED_WRITERS on one stream.

    ``active`` is the number of matching writers that are not retired. ``facts_last_hour`` is None if no
    minimum is set, or if this process has watched these writers for less than an hour.
    """

    stream: str
    writer: str
    active: int
    facts_last_hour: int | None
    least_per_hour: float | None
    status: Verdict


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream with its positions and its writers, worst first."""

    name: str
    head: int
    linear_position: int
    sequence_value: int | None
    last_fact_at: datetime | None
    status: Verdict
    writers: tuple[WriterView, ...]
    retired_before: int = 0
    """Number of retired writers that are not listed: they left long ago, or there are too many."""
    recorded_from: str = ""
    """The foreign server that the stream is recorded from. Empty for our own streams."""
    recent: tuple[float | None, ...] = ()
    """Facts per second in the last five minutes, by steps (``replsite.status.series``), oldest first. Empty: no facts at all."""
    expected: tuple[ExpectedView, ...] = ()
    """The required writers, worst first."""
    sequence_status: Verdict | None = None
    """What is wrong with its sequence. None: nothing."""
    holders: tuple[HolderView, ...] = ()
    """Who holds the stream back now, the lowest bound first."""

    @property
    def blocked(self) -> HolderView | None:
        """The first append that is open for too long, or None."""
        return next((one for one in self.holders if one.status.severity >= Severity.WARNING), None)


@dataclass(frozen=True, slots=True)
class ReaderStreamView:
    """A reader on one stream. ``lag_seconds`` is the age of the oldest fact that the reader has not read, or 0."""

    stream: str
    positions: Mapping[str, int]
    position: int
    lag_facts: int
    lag_exact: bool
    lag_seconds: float
    unmoved_seconds: float | None
    status: Verdict
    lag_change_per_second: float | None = None
    """In facts. Above 0: the lag grows. None: not watched long enough."""
    seconds_to_current: float | None = None
    """Seconds until the lag is 0 at the present rate. None: there is no lag, or it does not fall."""
    recent: tuple[float | None, ...] = ()
    """Highest lag in facts in the last five minutes, by steps, oldest first. Empty: there was no lag."""
    error: str = ""
    """Error that stopped a named reader on this stream. It is shown until its cursor moves again."""
    parked_facts: int = 0
    """Number of its dead letters, up to a limit."""
    parked_exact: bool = True
    """False: there are more than ``parked_facts``."""
    parked_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class WaitingView:
    """Data on its way to a reader: commands for its connection, bytes in the kernel's buffers, rows to be handled."""

    lines: int = 0
    kernel_send_bytes: int = 0
    kernel_read_bytes: int = 0
    queued: Mapping[str, int] = field(default_factory=dict)
    """Number of rows by stream that the reader has received and not handled."""


@dataclass(frozen=True, slots=True)
class RightsView:
    """The rights of a connection's certificate (``REPLSITE_WIRE_RIGHTS``), as patterns. ``*`` allows everything.

    ``refused`` is the number of the connection's commands that were refused. ``refusal`` is the reason for the last one.
    """

    certificate: str
    names: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    refused: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class ReaderView:
    """A reader or connection with the streams that it follows, worst first.

    The positions of a connection are those that were sent to it. The positions of a follower or a Spark query are those
    that it has handled.
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
    """Over the last half minute. None: not watched long enough."""
    seconds_to_overflow: float | None = None
    """Seconds until the unsent bytes reach the limit at which a slow connection is closed. None: they do not grow."""
    waiting: WaitingView = WaitingView()
    runs: bool = True
    """False for a named reader with stored cursors that no process runs now."""
    has_row: bool = True
    """True if it has a row in ``streams_reader``. False if only its cursors are known."""
    rights: RightsView | None = None
    """None: no rule limits it."""

    @property
    def about(self) -> str:
        """The argument of actions on the reader: for a named reader its name, for any other reader its key."""
        return self.key.removeprefix(NAMED)


@dataclass(frozen=True, slots=True)
class SyncingView:
    """The syncing users of one worker process. ``name`` is what the worker calls itself, ``worker`` its random ID."""

    name: str
    worker: str
    address: str
    users: int
    last_news_at: datetime


@dataclass(frozen=True, slots=True)
class AcknowledgedView:
    """The position in the stream ``federation`` that a federation sender has acknowledged."""

    instance: str
    token: int
    acknowledged_at: datetime


@dataclass(frozen=True, slots=True)
class CountView:
    """A total of what happened on the connections of all servers, such as sent commands, or a total of rows that jobs changed.

    ``kind`` is closed, refused, received, sent, rdata, updates, dropped or job rows.
    """

    kind: str
    name: str
    total: int


@dataclass(frozen=True, slots=True)
class WorkersView:
    """The reports of workers, over all servers, and the counters of connections.

    ``addresses`` is the number of stored user addresses.
    """

    users_syncing: int = 0
    syncing: tuple[SyncingView, ...] = ()
    acknowledged: tuple[AcknowledgedView, ...] = ()
    addresses: int = 0
    addresses_exact: bool = True
    counts: tuple[CountView, ...] = ()

    def counted(self, kind: str) -> dict[str, int]:
        """Returns ``{name: total}`` of the counters of this kind."""
        return {count.name: count.total for count in self.counts if count.kind == kind}


@dataclass(frozen=True, slots=True)
class JobStatusView:
    """A job that is queued or running, or that ended within a day.

    ``done`` and ``total`` are amounts of the present stage, in ``unit``, for example events. ``rate`` is the growth of
    ``done`` per second in this stage. If the job is over, ``rate`` is the average over the job's whole time.
    """

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
    """The times of the last success and the last failure of a kind of job."""

    kind: str
    last_success_at: datetime | None
    last_failure_at: datetime | None


@dataclass(frozen=True, slots=True)
class QueryFigures:
    """The progress of a query of the live pipeline: its number of applied batches, and the time of the last one.

    Batches are counted from the creation of the query's tables.
    """

    query: str
    batches: int
    applied_at: datetime


@dataclass(frozen=True, slots=True)
class JobsView:
    """Jobs, worst first, with the last success and failure of each kind, and the progress of the live queries."""

    jobs: tuple[JobStatusView, ...] = ()
    kinds: tuple[JobFigures, ...] = ()
    queries: tuple[QueryFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class TableView:
    """A table with PostgreSQL's estimate of its rows (None: not known) and its bytes including indexes.

    ``grown_bytes`` and ``grown_rows`` are the growth since ``grown_since``: since a day ago, or since the history begins.
    """

    name: str
    rows: int | None
    size_bytes: int
    grown_bytes: int | None = None
    grown_rows: int | None = None
    grown_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class RoomSizeView:
    """A big room, from its row of ``RoomSummary``."""

    room_id: str
    events: int
    members: int
    active_at: datetime | None


@dataclass(frozen=True, slots=True)
class StorageView:
    """The storage of the database, read once a minute at most. ``tables`` are the largest ones."""

    as_of: datetime
    database: TableView
    tables: tuple[TableView, ...] = ()
    state_groups: int | None = None
    state_group_rows: int | None = None
    """Rows of all state groups, stored as deltas."""
    state_bytes: int = 0
    unreferenced_groups: int | None = None
    """State groups that no event references, and that no other group is a delta to."""
    unreferenced_exact: bool = True
    """False: estimated from a sample, because there are many groups."""
    rooms: tuple[RoomSizeView, ...] = ()
    standbys: tuple[tuple[str, bool], ...] = ()
    """The replication slots for standbys of the database, and for each true if a standby reads from it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole site at one moment of the database's clock."""

    as_of: datetime
    version: str
    health: Health
    streams: tuple[StreamView, ...]
    readers: tuple[ReaderView, ...]
    workers: WorkersView = WorkersView()
    jobs: JobsView = JobsView()
    storage: StorageView | None = None

    def stream(self, name: str) -> StreamView:
        """Returns the stream of that name. Raises ``KeyError`` if there is none."""
        return {stream.name: stream for stream in self.streams}[name]


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """Returns the snapshot as plain JSON values. Times are ISO 8601 in UTC, severities are lower-case names."""
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
