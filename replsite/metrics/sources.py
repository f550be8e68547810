"""Computes the samples of metrics, from a snapshot or from counters of this process.

Clients choose their own names, so the number of names is unbounded. At most ``MOST_LABELS`` plain names (``plain_label``)
become labels; readers with a problem come first. All other names share the label ``other``. For readers that share a label,
the worst figure is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from replsite import installed_apps
from replsite.conf import site_settings
from replsite.disk import disk_free, disk_reserve
from replsite.http.request_places import POOLS
from replsite.live_rows.readers import ReaderRow, ReaderStreamRow
from replsite.live_rows.snapshot import Snapshot
from replsite.metrics.measure import Row
from replsite.status.words import JobWord, ReaderWord, Severity, WriterWord
from streams.browsers import clients
from streams.reading.reader_table import NAMED
from streams.runtime.text import OTHER, plain_label
from streams.waiting import wait

if installed_apps.has("events"):
    from events.notifier import notifier

if TYPE_CHECKING:
    from events.notifier.cache import NotifierFigures


# --- the cluster --------------------------------------------------------------------------------------------------------
class Scrape:
    """A snapshot, with the parts of it that several metrics need.

    A part that may be missing, such as the storage, is a list of at most one element.
    """

    def __init__(self, snapshot: Snapshot, server_name: str, seconds: float) -> None:
        self.snapshot, self.server_name, self.seconds = snapshot, server_name, seconds
        self.streams, self.workers, self.jobs = snapshot.streams, snapshot.workers, snapshot.jobs
        self.own_streams = [stream for stream in snapshot.streams if not stream.recorded_from]
        self.events = [stream for stream in snapshot.streams if stream.name == "events"]
        self.storage = [] if snapshot.storage is None else [snapshot.storage]
        self.writers = [((stream.name, writer.writer), writer) for stream in self.streams for writer in stream.writers]
        self.readers = _by_label(snapshot.readers)
        self.served = [
            (label, found)
            for label, readers in self.readers.items()
            if (found := [reader for reader in readers if reader.kind == "connection"])
        ]
        followed: dict[tuple[str, str], list[ReaderStreamRow]] = {}
        for label, readers in self.readers.items():
            # Readers with the same positions may share one list of views, which counts once. Dead letters are summed, so readers
            # that have some never share theirs.
            for views in {id(reader.streams): reader.streams for reader in readers}.values():
                for view in views:
                    followed.setdefault((label, view.stream), []).append(view)
        #: ((label, stream), the views of the readers with that label on that stream).
        self.followed = followed.items()
        self.on_events = [(at[0], views) for at, views in self.followed if self.events and at[1] == "events"]
        self.disk_free, self.disk_reserve = disk_free()[1], disk_reserve()


def _by_label(readers: Iterable[ReaderRow]) -> dict[str, list[ReaderRow]]:
    """Groups the open readers by their label.

    Only a limited number of names get a label of their own: first the names of readers with a problem, then those of
    named readers, then others, each in alphabetical order. So the same names have labels at each scrape, until other
    readers have a problem.
    """
    found: dict[str, list[ReaderRow]] = {}
    for reader in sorted(readers, key=_precedence):
        if reader.closed_at is None:
            found.setdefault(plain_label(reader.name, found), []).append(reader)
    return found


def _precedence(reader: ReaderRow) -> tuple[int, bool, str]:
    is_named = reader.key.startswith(NAMED)
    return -max(reader.status.severity, Severity.NOTE), not is_named, reader.name


def writer_status(scrape: Scrape) -> Iterator[Row]:
    """Returns a row for each writer and each status word. Its value is true if the writer has this status."""
    return ((word == writer.status.word, *at, word) for at, writer in scrape.writers for word in WriterWord)


def reader_positions(scrape: Scrape) -> Iterator[Row]:
    """Yields, for each label, stream and writer, the lowest position of the readers with that label."""
    for at, views in scrape.followed:
        positions: dict[str, int] = {}
        for writer, position in (pair for view in views for pair in view.positions.items()):
            positions[writer] = min(position, positions.get(writer, position))
        yield from ((position, *at, writer) for writer, position in positions.items())


def reader_status(scrape: Scrape) -> Iterator[Row]:
    """Returns a row for each label, stream and status word.

    Its value is true if this word is the worst status of the readers with this label.
    """
    for at, views in scrape.followed:
        status = max(views, key=lambda view: view.status.severity).status.word
        yield from ((word == status, *at, word) for word in ReaderWord)


def lag_seconds(views: Sequence[ReaderStreamRow]) -> float:
    return max(view.lag_seconds for view in views)


def connections(scrape: Scrape) -> list[Row]:
    """Returns the numbers of open replication connections: inbound to our servers, outbound of our followers."""
    kinds = [reader.kind for reader in scrape.snapshot.readers if reader.closed_at is None and reader.runs]
    return [(kinds.count("connection"), "inbound"), (kinds.count("follower"), "outbound")]


def kernel_buffers(scrape: Scrape) -> Iterator[Row]:
    """Yields, for each label, the bytes in the kernel's send and receive buffers of all connections with this label."""
    for label, served in scrape.served:
        yield sum(reader.waiting.kernel_send_bytes for reader in served), label, "send"
        yield sum(reader.waiting.kernel_read_bytes for reader in served), label, "read"


def queued(scrape: Scrape) -> Iterator[Row]:
    """Returns, for each stream, the number of rows that our followers have received and not handled.

    A followed stream without such rows has 0.
    """
    found: Counter[str] = Counter()
    for reader in (r for readers in scrape.readers.values() for r in readers if r.kind == "follower"):
        found.update({view.stream: 0 for view in reader.streams})
        found.update(reader.waiting.queued)
    return ((rows, stream) for stream, rows in found.items())


def of_clients(counted: dict[str, int]) -> Iterator[Row]:
    """Returns rows of (count, command, label of the client).

    The keys of ``counted`` are ``COMMAND name`` with the client's name. Clients choose their names, so the number of labels
    is bounded.
    """
    found: Counter[tuple[str, str]] = Counter()
    known: set[str] = set()
    for key, total in sorted(counted.items()):
        command, _, name = key.partition(" ")
        label = plain_label(name, known)
        if label != OTHER:
            known.add(label)
        found[command, label] += total
    return ((total, *at) for at, total in found.items())


def worker_users(scrape: Scrape) -> Iterator[Row]:
    """Returns the number of syncing users for each worker's label."""
    users: dict[str, int] = {}
    for worker in scrape.workers.syncing:
        label = plain_label(worker.name, users)
        users[label] = users.get(label, 0) + worker.users
    return ((number, label) for label, number in users.items())


def acknowledged(scrape: Scrape) -> Iterator[Row]:
    """Returns, for each label, the lowest token that federation senders with this label have acknowledged."""
    tokens: dict[str, int] = {}
    for sender in scrape.workers.acknowledged:
        label = plain_label(sender.instance, tokens)
        tokens[label] = min(sender.token, tokens.get(label, sender.token))
    return ((token, label) for label, token in tokens.items())


def jobs_by_status(scrape: Scrape) -> Iterator[Row]:
    """Returns the number of jobs for each status word, 0 included."""
    words = [str(job.status.word) for job in scrape.jobs.jobs]
    return ((words.count(word), word) for word in JobWord)


def job_progress(scrape: Scrape) -> Iterator[Row]:
    """Returns for each kind of job the smallest completed share (0 to 1) among its running jobs.

    Jobs without a known total are left out.
    """
    shares: dict[str, float] = {}
    for job in scrape.jobs.jobs:
        if job.status.word == JobWord.RUNNING and job.total:
            share = min(job.done / job.total, 1.0)
            shares[job.kind] = min(share, shares.get(job.kind, 1.0))
    return ((share, kind) for kind, share in shares.items())


def job_periods(_: Any) -> Iterator[Row]:
    return ((float(seconds), job) for job, seconds in site_settings().job_periods.items())


def linear_positions(scrape: Scrape) -> Iterator[Row]:
    """Returns the linear position of each stream, labelled with stream and server.

    For a stream that was recorded from a foreign server, the second label is the name of that server.
    """
    found: dict[tuple[str, str], int] = {}
    for stream in scrape.streams:
        name = stream.name.partition("/")[2] if stream.recorded_from else stream.name
        if not name:  # nothing was recorded yet
            continue
        found.setdefault((name, stream.recorded_from or scrape.server_name), stream.linear_position)
    return ((position, *at) for at, position in found.items())


def read_upto(scrape: Scrape) -> Iterator[Row]:
    """Yields the time up to which readers of ``events`` have read, in milliseconds since the epoch (1970).

    For a reader without lag this is the time of the last fact, or the time of the snapshot if there is no fact.
    """
    as_of = scrape.snapshot.as_of.timestamp()
    for label, views in scrape.on_events:
        lag, last = lag_seconds(views), scrape.events[0].last_fact_at
        at = as_of if last is None else last.timestamp()
        yield (as_of - lag if lag else at) * 1000, label, scrape.server_name


def background_status(scrape: Scrape) -> int:
    """Returns the value of Synapse's metric for background updates, computed from the jobs of this site.

    The value is 2 if a job runs or waits. Otherwise it is -1 if the last job of some kind failed, and 3 if not.
    """
    if any(job.status.word in (JobWord.RUNNING, JobWord.QUEUED, JobWord.WAITING) for job in scrape.jobs.jobs):
        return 2
    failed = any(
        kind.last_failure_at and (not kind.last_success_at or kind.last_failure_at > kind.last_success_at)
        for kind in scrape.jobs.kinds
    )
    return -1 if failed else 3


# --- this process -------------------------------------------------------------------------------------------------------
class ProcessScrape:
    """The counters of this process at one moment."""

    def __init__(self) -> None:
        figures = notifier.figures() if installed_apps.has("events") else None
        #: Empty while the notifier has not been used in this process, else one element.
        self.hot: list[NotifierFigures] = [] if figures is None else [figures]
        self.timed_out = sorted(wait.timed_out.items())
        self.pools = POOLS
        self.browsers, self.browser_counts = clients.open_clients(), clients.counts
