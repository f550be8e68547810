"""All metric names of the site in one place, filled from the snapshot at scrape time.

Positions and lag come from the database, so ``/metrics`` of any process shows the whole cluster, and several processes
cannot disagree. Django's own metrics (``django_*``) and those that processes count themselves stand beside them. While the
database is away the answer still comes, with ``replsite_snapshot_up 0`` and nothing that would be old.

Names that peers choose are unbounded, so only plain ones and at most ``labels.MOST_LABELS`` of them become labels; the rest is
``other``. Readers that share a label are shown as the worst of them.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

import django
from django.conf import settings
from django.db import Error as DatabaseError
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from replsite.cache_metrics import CacheCollector
from replsite.hot_metrics import HotCollector
from replsite.labels import plain_label
from replsite.metric_name import MetricName
from replsite.shared_snapshot import SHARED
from replsite.snapshot_views import JobsView, ReaderStreamView, ReaderView, Snapshot, StreamView, WorkersView
from replsite.status import JobWord, ReaderWord, WriterWord
from streams import waiting
from streams.conf import stream_settings
from streams.logs import get_logger

__all__ = ["OWN", "SYNAPSE", "MetricName", "SnapshotCollector", "families", "metrics_view"]

log = get_logger(__name__)


UP = MetricName("replsite_snapshot_up", (), "1 if the database could be read for this scrape")
DURATION = MetricName("replsite_snapshot_duration_seconds", (), "Time that the snapshot took")
BUILD = MetricName("replsite_build_info", ("version", "python", "django"), "Versions; always 1")
POSITION = MetricName("replsite_stream_position", ("stream", "writer"), "Position of a writer of a stream")
LINEAR = MetricName(
    "replsite_stream_linear_position", ("stream",), "Position up to which every fact of any writer is complete"
)
SEQUENCE = MetricName("replsite_stream_sequence_value", ("stream",), "Last ID that the stream's sequence gave out")
PENDING = MetricName("replsite_stream_pending_facts", ("stream", "writer"), "IDs reserved and not complete")
OLDEST_PENDING = MetricName(
    "replsite_stream_oldest_pending_seconds",
    ("stream", "writer"),
    "Age of the oldest pending fact; 0: nothing is pending",
)
COMPLETED = MetricName(
    "replsite_stream_facts_completed",
    ("stream", "writer", "outcome"),
    "Facts completed: written, rolled_back, or resolved (pending when their writer was proven dead)",
    counter=True,
)
KNOWN_DONE = MetricName(
    "replsite_stream_known_done_ids",
    ("stream", "writer"),
    "Single complete IDs that the writer's process keeps above a linear position that is stuck",
)
WAIT_TIMEOUTS = MetricName(
    "replsite_wait_timeouts", ("stream",), "Waits for a position that timed out in this process", counter=True
)
LAST_ADVANCE = MetricName(
    "replsite_stream_last_advance_timestamp_seconds", ("stream", "writer"), "When the writer's position last rose"
)
HEARTBEAT = MetricName(
    "replsite_writer_heartbeat_timestamp_seconds", ("writer",), "Last sign of life of a writer's process"
)
WRITER_STATUS = MetricName(
    "replsite_writer_status", ("stream", "writer", "status"), "1 for the status word that applies to the writer"
)
READER_POSITION = MetricName(
    "replsite_reader_position", ("reader", "stream", "writer"), "Position of a reader for each writer of a stream"
)
READER_LAG_FACTS = MetricName(
    "replsite_reader_lag_facts", ("reader", "stream"), "Facts that the reader has not read yet"
)
READER_LAG_SECONDS = MetricName(
    "replsite_reader_lag_seconds", ("reader", "stream"), "Age of the oldest fact that the reader has not read; 0: none"
)
READER_STATUS = MetricName(
    "replsite_reader_status", ("reader", "stream", "status"), "1 for the status word that applies to the reader"
)
CONNECTIONS = MetricName(
    "replsite_replication_connections",
    ("direction",),
    "Replication connections: inbound to our servers, outbound of our followers",
)
SYNCING_USERS = MetricName("replsite_syncing_users", (), "Users that sync on some worker now")
WORKER_USERS = MetricName("replsite_worker_syncing_users", ("worker",), "Users that sync over connections of that name")
ACKNOWLEDGED = MetricName(
    "replsite_federation_acknowledged_position", ("sender",), "Federation token that a sender acknowledged"
)
ADDRESSES = MetricName("replsite_user_addresses", (), "Addresses of users that are kept; counted up to 100,000")
CLOSED = MetricName(
    "replsite_replication_connections_closed", ("reason",), "Replication connections that ended", counter=True
)
REFUSED = MetricName("replsite_connections_refused", ("reason",), "Connections that were refused", counter=True)
COMMANDS = MetricName("replsite_replication_commands", ("command",), "Commands that clients sent", counter=True)
DROPPED = MetricName(
    "replsite_worker_reports_dropped", ("command",), "Reports of workers that were dropped", counter=True
)
JOBS = MetricName("replsite_jobs", ("status",), "Jobs that wait, are at work, or ended within a day")
JOB_SUCCESS = MetricName(
    "replsite_job_last_success_timestamp_seconds", ("job",), "When a job of this kind was last done"
)
JOB_FAILURE = MetricName("replsite_job_last_failure_timestamp_seconds", ("job",), "When a job of this kind last failed")
JOB_PROGRESS = MetricName(
    "replsite_job_progress_ratio", ("job",), "Share of its stage that the job of this kind at work has done; the least"
)
OWN = (
    UP, DURATION, BUILD, POSITION, LINEAR, SEQUENCE, PENDING, OLDEST_PENDING, COMPLETED, KNOWN_DONE, LAST_ADVANCE,
    HEARTBEAT, WRITER_STATUS, READER_POSITION, READER_LAG_FACTS, READER_LAG_SECONDS, READER_STATUS, CONNECTIONS, WAIT_TIMEOUTS,
    SYNCING_USERS, WORKER_USERS, ACKNOWLEDGED, ADDRESSES, CLOSED, REFUSED, COMMANDS, DROPPED, JOBS,
    JOB_SUCCESS, JOB_FAILURE, JOB_PROGRESS,
)  # fmt: skip

SYNAPSE_LINEAR = MetricName("synapse_storage_stream_current_position", ("stream_name", "server_name"), LINEAR.help)
SYNAPSE_PERSISTED = MetricName(
    "synapse_event_persisted_position", ("server_name",), "Linear position of the stream events"
)
SYNAPSE_POSITION = MetricName(
    "synapse_event_processing_positions", ("name", "server_name"), "Position of a reader of the stream events"
)
SYNAPSE_LAG = MetricName(
    "synapse_event_processing_lag", ("name", "server_name"), "Lag of a reader of the stream events, in milliseconds"
)
SYNAPSE_LAST_TS = MetricName(
    "synapse_event_processing_last_ts",
    ("name", "server_name"),
    "Time up to which a reader of the stream events has read, in milliseconds since the epoch",
)
SYNAPSE_CONNECTIONS = MetricName(
    "synapse_replication_tcp_resource_total_connections", ("server_name",), "Replication connections to our servers"
)
SYNAPSE_BUILD = MetricName("synapse_build_info", ("pythonversion", "version", "osversion"), "Versions; always 1")
SYNAPSE = (
    SYNAPSE_LINEAR, SYNAPSE_PERSISTED, SYNAPSE_POSITION, SYNAPSE_LAG, SYNAPSE_LAST_TS, SYNAPSE_CONNECTIONS, SYNAPSE_BUILD,
)  # fmt: skip


class _Page:
    """The families of one scrape."""

    def __init__(self, names: Iterable[MetricName]) -> None:
        self._families = {name: name.family() for name in names}

    def add(self, name: MetricName, value: float, *labels: str) -> None:
        self._families[name].add_metric(labels, value)

    def filled(self) -> Iterator[Metric]:
        return (family for family in self._families.values() if family.samples)


def families(snapshot: Snapshot, *, synapse_names: bool, server_name: str) -> Iterator[Metric]:
    """The snapshot as metric families."""
    page = _Page((*OWN, *SYNAPSE))
    page.add(BUILD, 1, snapshot.version, platform.python_version(), django.get_version())
    readers = _by_label(snapshot.readers)
    for stream in snapshot.streams:
        _add_stream(page, stream)
    _add_heartbeats(page, snapshot)
    for label, found in readers.items():
        for stream_name, views in _by_stream(found).items():
            _add_reader(page, label, stream_name, views)
    open_kinds = [reader.kind for reader in snapshot.readers if reader.closed_at is None]
    page.add(CONNECTIONS, open_kinds.count("connection"), "inbound")
    page.add(CONNECTIONS, open_kinds.count("follower"), "outbound")
    _add_workers(page, snapshot.workers)
    _add_jobs(page, snapshot.jobs)
    if synapse_names:
        _add_synapse(page, snapshot, readers, server_name)
    return page.filled()


def _add_stream(page: _Page, stream: StreamView) -> None:
    page.add(LINEAR, stream.linear_position, stream.name)
    if stream.sequence_value is not None:
        page.add(SEQUENCE, stream.sequence_value, stream.name)
    for writer in stream.writers:
        who = (stream.name, writer.writer)
        page.add(POSITION, writer.position, *who)
        page.add(PENDING, writer.pending_facts, *who)
        page.add(OLDEST_PENDING, writer.oldest_pending_seconds or 0.0, *who)
        page.add(COMPLETED, writer.facts_written, *who, "written")
        page.add(COMPLETED, writer.facts_rolled_back, *who, "rolled_back")
        page.add(COMPLETED, writer.facts_resolved, *who, "resolved")
        page.add(KNOWN_DONE, writer.known_done_ids, *who)
        page.add(LAST_ADVANCE, writer.last_advance_at.timestamp(), *who)
        for word in WriterWord:
            page.add(WRITER_STATUS, float(word == writer.status.word), *who, word)


def _add_workers(page: _Page, workers: WorkersView) -> None:
    page.add(SYNCING_USERS, workers.users_syncing)
    page.add(ADDRESSES, workers.addresses)
    users: dict[str, int] = {}
    for one in workers.syncing:
        label = plain_label(one.name, users)
        users[label] = users.get(label, 0) + one.users
    for label, number in users.items():
        page.add(WORKER_USERS, number, label)
    tokens: dict[str, int] = {}
    for acknowledged in workers.acknowledged:
        label = plain_label(acknowledged.instance, tokens)
        tokens[label] = min(acknowledged.token, tokens.get(label, acknowledged.token))
    for label, token in tokens.items():
        page.add(ACKNOWLEDGED, token, label)
    for kind, name in (("closed", CLOSED), ("refused", REFUSED), ("command", COMMANDS), ("dropped", DROPPED)):
        for what, total in workers.counted(kind).items():
            page.add(name, total, what)


def _add_jobs(page: _Page, found: JobsView) -> None:
    words = [str(job.status.word) for job in found.jobs]
    for word in JobWord:
        page.add(JOBS, words.count(word), word)
    for kind in found.kinds:
        if kind.last_success_at is not None:
            page.add(JOB_SUCCESS, kind.last_success_at.timestamp(), kind.kind)
        if kind.last_failure_at is not None:
            page.add(JOB_FAILURE, kind.last_failure_at.timestamp(), kind.kind)
    shares: dict[str, float] = {}
    for job in found.jobs:
        if job.status.word == JobWord.RUNNING and job.total:
            share = min(job.done / job.total, 1.0)
            shares[job.kind] = min(share, shares.get(job.kind, 1.0))
    for name, share in shares.items():
        page.add(JOB_PROGRESS, share, name)


def _add_heartbeats(page: _Page, snapshot: Snapshot) -> None:
    beats = {
        w.writer: w.heartbeat_at for stream in snapshot.streams for w in stream.writers if w.heartbeat_at is not None
    }
    for writer, at in sorted(beats.items()):
        page.add(HEARTBEAT, at.timestamp(), writer)


def _add_reader(page: _Page, label: str, stream: str, views: list[ReaderStreamView]) -> None:
    positions: dict[str, int] = {}
    for view in views:
        for writer, at in view.positions.items():
            positions[writer] = min(at, positions.get(writer, at))
    for writer, at in positions.items():
        page.add(READER_POSITION, at, label, stream, writer)
    page.add(READER_LAG_FACTS, max(view.lag_facts for view in views), label, stream)
    page.add(READER_LAG_SECONDS, max(view.lag_seconds for view in views), label, stream)
    status = max(views, key=lambda view: view.status.severity).status.word
    for word in ReaderWord:
        page.add(READER_STATUS, float(word == status), label, stream, word)


def _add_synapse(page: _Page, snapshot: Snapshot, readers: dict[str, list[ReaderView]], server: str) -> None:
    linear: dict[tuple[str, str], int] = {}
    for stream in snapshot.streams:
        name = stream.name.partition("/")[2] if stream.recorded_from else stream.name
        linear.setdefault((name, stream.recorded_from or server), stream.linear_position)
    for labels, position in linear.items():
        page.add(SYNAPSE_LINEAR, position, *labels)
    for stream in snapshot.streams:
        if stream.name == "events":
            page.add(SYNAPSE_PERSISTED, stream.linear_position, server)
            _add_synapse_readers(page, stream.last_fact_at or snapshot.as_of, snapshot, readers, server)
    page.add(SYNAPSE_CONNECTIONS, sum(r.kind == "connection" and r.closed_at is None for r in snapshot.readers), server)
    page.add(SYNAPSE_BUILD, 1, platform.python_version(), f"replsite {snapshot.version}", platform.system())


def _add_synapse_readers(
    page: _Page, last_fact_at: datetime, snapshot: Snapshot, readers: dict[str, list[ReaderView]], server: str
) -> None:
    for label, found in readers.items():
        views = _by_stream(found).get("events")
        if not views:
            continue
        lag = max(view.lag_seconds for view in views)
        read_upto = snapshot.as_of.timestamp() - lag if lag else last_fact_at.timestamp()
        page.add(SYNAPSE_POSITION, min(view.position for view in views), label, server)
        page.add(SYNAPSE_LAG, lag * 1000, label, server)
        page.add(SYNAPSE_LAST_TS, read_upto * 1000, label, server)


def _by_label(readers: Iterable[ReaderView]) -> dict[str, list[ReaderView]]:
    """Open readers under a bounded set of labels."""
    found: dict[str, list[ReaderView]] = {}
    for reader in readers:
        if reader.closed_at is None:
            found.setdefault(plain_label(reader.name, found), []).append(reader)
    return found


def _by_stream(readers: Iterable[ReaderView]) -> dict[str, list[ReaderStreamView]]:
    found: dict[str, list[ReaderStreamView]] = {}
    for reader in readers:
        for view in reader.streams:
            found.setdefault(view.stream, []).append(view)
    return found


class SnapshotCollector(Collector):
    """Gives the snapshot's metrics to one scrape."""

    def __init__(self, get: Callable[[], Snapshot] = SHARED.get) -> None:
        self._get = get

    def describe(self) -> Iterator[Metric]:
        """The names, so that registering the collector does not ask the database."""
        return (name.family() for name in (*OWN, *SYNAPSE))

    def collect(self) -> Iterator[Metric]:
        """Read the shared snapshot; without a database only the news that it is away."""
        started = time.monotonic()
        page = _Page((UP, DURATION, WAIT_TIMEOUTS))
        for stream, number in list(waiting.timed_out.items()):
            page.add(WAIT_TIMEOUTS, number, stream)
        try:
            snapshot = self._get()
        except DatabaseError as error:
            log.warning("metrics.no_snapshot", error=str(error).strip())
            page.add(UP, 0)
            yield from page.filled()
            return
        page.add(UP, 1)
        page.add(DURATION, time.monotonic() - started)
        yield from page.filled()
        yield from families(
            snapshot,
            synapse_names=getattr(settings, "REPLSITE_SYNAPSE_METRIC_NAMES", True),
            server_name=stream_settings().server_name,
        )


def _process_registry() -> CollectorRegistry:
    """What processes count themselves: this one, or all of them in prometheus_client's multiprocess mode."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ and "prometheus_multiproc_dir" not in os.environ:
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return registry


_CLUSTER = CollectorRegistry()
_CLUSTER.register(SnapshotCollector())
_CACHES = CollectorRegistry()
_CACHES.register(CacheCollector())
_CACHES.register(HotCollector())


def metrics_view(request: HttpRequest) -> HttpResponse:
    """``/metrics``: the cluster from the snapshot, then what Django and this process count."""
    return HttpResponse(
        generate_latest(_CLUSTER) + generate_latest(_CACHES) + generate_latest(_process_registry()),
        content_type=CONTENT_TYPE_LATEST,
    )
