"""The cluster's metrics, filled from the snapshot at scrape time, and the answer to a scrape.

Positions and lag come from the database, so ``/metrics`` of any process shows the whole cluster, and several processes
cannot disagree. What processes count themselves stands beside it (``process_metrics``). While the database is away the answer
still comes, with ``replsite_snapshot_up 0`` and nothing that would be old.

Names that peers choose are unbounded, so only plain ones and at most ``labels.MOST_LABELS`` of them become labels; the rest is
``other``. Readers that share a label are shown as the worst of them.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import django
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from replsite.http.deadline import Deadline, NoAnswer
from replsite.http.request_places import CAME
from replsite.metric_name import MetricName
from replsite.metrics import names, process
from replsite.metrics.names import OWN, SYNAPSE
from replsite.metrics.shared_rendering import SharedRendering
from replsite.metrics.synapse import SynapseNames, add_synapse, synapse_names_are_wanted
from replsite.snapshot.shared import SHARED
from replsite.snapshot.types import (
    JobsView,
    ReaderStreamView,
    ReaderView,
    Snapshot,
    StorageView,
    StreamView,
    WorkersView,
)
from replsite.status.verdicts import JobWord, ReaderWord, Severity, WriterWord
from streams.conf import stream_settings
from streams.runtime.logs import get_logger
from streams.runtime.text import OTHER, plain_label

__all__ = ["OWN", "SYNAPSE", "MetricName", "SnapshotCollector", "families", "metrics_view"]

log = get_logger(__name__)


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
    page.add(names.AS_OF, snapshot.as_of.timestamp())
    page.add(names.BUILD, 1, snapshot.version, platform.python_version(), django.get_version())
    readers = _by_label(snapshot.readers)
    for stream in snapshot.streams:
        _add_stream(page, stream)
    _add_heartbeats(page, snapshot)
    for label, found in readers.items():
        for stream_name, views in _by_stream(found).items():
            _add_reader(page, label, stream_name, views)
    _add_wire(page, snapshot.readers, readers)
    _add_counts(page, snapshot.workers)
    _add_workers(page, snapshot.workers)
    _add_jobs(page, snapshot.jobs)
    if snapshot.storage is not None:
        _add_storage(page, snapshot.storage)
    if synapse_names:
        of_events = {label: on for label, found in readers.items() if (on := _by_stream(found).get("events"))}
        add_synapse(page, snapshot, of_events, server_name)
    return page.filled()


def _add_stream(page: _Page, stream: StreamView) -> None:
    page.add(names.LINEAR, stream.linear_position, stream.name)
    if stream.sequence_value is not None:
        page.add(names.SEQUENCE, stream.sequence_value, stream.name)
    for writer in stream.writers:
        who = (stream.name, writer.writer)
        page.add(names.POSITION, writer.position, *who)
        page.add(names.PENDING, writer.pending_facts, *who)
        page.add(names.OLDEST_PENDING, writer.oldest_pending_seconds or 0.0, *who)
        page.add(names.COMPLETED, writer.facts_written, *who, "written")
        page.add(names.COMPLETED, writer.facts_rolled_back, *who, "rolled_back")
        page.add(names.COMPLETED, writer.facts_resolved, *who, "resolved")
        page.add(names.LAST_ADVANCE, writer.last_advance_at.timestamp(), *who)
        for word in WriterWord:
            page.add(names.WRITER_STATUS, float(word == writer.status.word), *who, word)
    for expected in stream.expected:
        page.add(names.EXPECTED_WELL, float(expected.status.severity == Severity.FINE), stream.name, expected.writer)


def _add_workers(page: _Page, workers: WorkersView) -> None:
    page.add(names.SYNCING_USERS, workers.users_syncing)
    page.add(names.ADDRESSES, workers.addresses)
    users: dict[str, int] = {}
    for one in workers.syncing:
        label = plain_label(one.name, users)
        users[label] = users.get(label, 0) + one.users
    for label, number in users.items():
        page.add(names.WORKER_USERS, number, label)
    tokens: dict[str, int] = {}
    for acknowledged in workers.acknowledged:
        label = plain_label(acknowledged.instance, tokens)
        tokens[label] = min(acknowledged.token, tokens.get(label, acknowledged.token))
    for label, token in tokens.items():
        page.add(names.ACKNOWLEDGED, token, label)


def _add_wire(page: _Page, all_readers: Iterable[ReaderView], readers: dict[str, list[ReaderView]]) -> None:
    """Connections, and what waits in them."""
    open_kinds = [reader.kind for reader in all_readers if reader.closed_at is None and reader.runs]
    page.add(names.CONNECTIONS, open_kinds.count("connection"), "inbound")
    page.add(names.CONNECTIONS, open_kinds.count("follower"), "outbound")
    queued: Counter[str] = Counter()
    for label, found in readers.items():
        served = [reader for reader in found if reader.kind == "connection"]
        if served:
            page.add(names.PENDING_COMMANDS, sum(reader.waiting.lines for reader in served), label)
            page.add(names.SEND_BUFFER, sum(reader.buffer_bytes for reader in served), label)
            page.add(names.KERNEL_BUFFER, sum(reader.waiting.kernel_send_bytes for reader in served), label, "send")
            page.add(names.KERNEL_BUFFER, sum(reader.waiting.kernel_read_bytes for reader in served), label, "read")
        for reader in found:
            if reader.kind == "follower":
                queued.update({view.stream: 0 for view in reader.streams})
                queued.update(reader.waiting.queued)
    for stream, rows in queued.items():
        page.add(names.QUEUE, rows, stream)


def _add_counts(page: _Page, workers: WorkersView) -> None:
    """What all servers and followers together have counted in the database; names of clients are bounded there, too."""
    for kind, name in (
        ("closed", names.CLOSED),
        ("refused", names.REFUSED),
        ("dropped", names.DROPPED),
        ("updates", names.UPDATES_SENT),
        ("rdata", names.RDATA_RECEIVED),
    ):
        for what, total in workers.counted(kind).items():
            page.add(name, total, what)
    for kind, name in (("received", names.RECEIVED), ("sent", names.SENT)):
        for (command, peer), total in _of_peers(workers.counted(kind)).items():
            page.add(name, total, command, peer)
    for what, total in workers.counted("job rows").items():
        job, table, action = what.split("|")
        page.add(names.JOB_ROWS, total, job, table, action)


def _of_peers(counts: Mapping[str, int]) -> Counter[tuple[str, str]]:
    """``COMMAND name`` -> both, under a bounded set of names."""
    found: Counter[tuple[str, str]] = Counter()
    known: set[str] = set()
    for what, total in sorted(counts.items()):
        command, _, peer = what.partition(" ")
        label = plain_label(peer, known)
        if label != OTHER:
            known.add(label)
        found[command, label] += total
    return found


def _add_jobs(page: _Page, found: JobsView) -> None:
    words = [str(job.status.word) for job in found.jobs]
    for word in JobWord:
        page.add(names.JOBS, words.count(word), word)
    for kind in found.kinds:
        if kind.last_success_at is not None:
            page.add(names.JOB_SUCCESS, kind.last_success_at.timestamp(), kind.kind)
        if kind.last_failure_at is not None:
            page.add(names.JOB_FAILURE, kind.last_failure_at.timestamp(), kind.kind)
    for job, seconds in getattr(settings, "REPLSITE_JOB_PERIODS", {}).items():
        page.add(names.JOB_PERIOD, float(seconds), job)
    for query in found.queries:
        page.add(names.QUERY_BATCHES, query.batches, query.query)
        page.add(names.QUERY_LAST, query.applied_at.timestamp(), query.query)
    shares: dict[str, float] = {}
    for job in found.jobs:
        if job.status.word == JobWord.RUNNING and job.total:
            share = min(job.done / job.total, 1.0)
            shares[job.kind] = min(share, shares.get(job.kind, 1.0))
    for name, share in shares.items():
        page.add(names.JOB_PROGRESS, share, name)


def _add_storage(page: _Page, storage: StorageView) -> None:
    """What could be counted."""
    for name, number in (
        (names.GROUPS, storage.state_groups),
        (names.GROUP_ROWS, storage.state_group_rows),
        (names.UNREFERENCED, storage.unreferenced_groups),
    ):
        if number is not None:
            page.add(name, number)


def _add_heartbeats(page: _Page, snapshot: Snapshot) -> None:
    beats = {
        w.writer: w.heartbeat_at for stream in snapshot.streams for w in stream.writers if w.heartbeat_at is not None
    }
    for writer, at in sorted(beats.items()):
        page.add(names.HEARTBEAT, at.timestamp(), writer)


def _add_reader(page: _Page, label: str, stream: str, views: list[ReaderStreamView]) -> None:
    positions: dict[str, int] = {}
    for view in views:
        for writer, at in view.positions.items():
            positions[writer] = min(at, positions.get(writer, at))
    for writer, at in positions.items():
        page.add(names.READER_POSITION, at, label, stream, writer)
    page.add(names.READER_LAG_FACTS, max(view.lag_facts for view in views), label, stream)
    page.add(names.READER_LAG_SECONDS, max(view.lag_seconds for view in views), label, stream)
    page.add(names.READER_PARKED, sum(view.parked_facts for view in views), label, stream)
    status = max(views, key=lambda view: view.status.severity).status.word
    for word in ReaderWord:
        page.add(names.READER_STATUS, float(word == status), label, stream, word)


def _by_label(readers: Iterable[ReaderView]) -> dict[str, list[ReaderView]]:
    """Open readers under a bounded set of labels, of many names always the same ones."""
    found: dict[str, list[ReaderView]] = {}
    for reader in sorted(readers, key=lambda reader: reader.name):
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
        self._is_away = False

    def describe(self) -> Iterator[Metric]:
        """The names, so that registering the collector does not ask the database."""
        return (name.family() for name in (*OWN, *SYNAPSE))

    def collect(self) -> Iterator[Metric]:
        """Read the shared snapshot; without a database only the news that it is away."""
        started = time.monotonic()
        page = _Page((names.UP, names.DURATION))
        try:
            snapshot = self._get()
        except DatabaseError as error:
            self._note(str(error).strip())
            page.add(names.UP, 0)
            yield from page.filled()
            return
        self._note("")
        page.add(names.UP, 1)
        page.add(names.DURATION, time.monotonic() - started)
        yield from page.filled()
        yield from families(
            snapshot, synapse_names=synapse_names_are_wanted(), server_name=stream_settings().server_name
        )

    def _note(self, error: str) -> None:
        """One line when it goes, one when it is back: scrapes come all the time."""
        if error and not self._is_away:
            log.warning("metrics.no_snapshot", error=error)
        elif self._is_away and not error:
            log.info("metrics.snapshot_again")
        self._is_away = bool(error)


_IN_TIME = Deadline(SHARED.get, float(getattr(settings, "REPLSITE_HEALTH_SECONDS", 5.0)), "replsite-metrics")


def _get_in_time() -> Snapshot:
    """The shared snapshot; a database that hangs is as good as away, so that no scrape hangs with it."""
    try:
        return _IN_TIME.ask()
    except NoAnswer as error:
        raise OperationalError(str(error)) from error


_CLUSTER = CollectorRegistry()
_CLUSTER.register(SynapseNames(SnapshotCollector(_get_in_time)))


def _render() -> bytes:
    return b"".join(generate_latest(registry) for registry in (_CLUSTER, *process.registries()))


_SHARED_PAGE = SharedRendering(_render)


def metrics_view(request: HttpRequest) -> HttpResponse:
    """``/metrics``: the cluster from the snapshot, then what Django and processes count."""
    came = getattr(request, "scope", {}).get(CAME) or time.monotonic()
    return HttpResponse(_SHARED_PAGE.get(came), content_type=CONTENT_TYPE_LATEST)
