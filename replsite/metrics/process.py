"""What this process counts itself: delays of readers, stored events, caches, waits; and Django's own ``django_*``.

Three ways to have them right with several processes, told in ``docs/how-to/monitor-with-prometheus.md``:

- one process, or one whose address the scrape names: they stand on ``/metrics`` beside the cluster's;
- ``REPLSITE_METRICS_PORTS``: every process that serves has a port of its own for them (a command that does one thing and is gone
  has none), and ``/metrics`` shows the cluster alone, which is
  the same from any process;
- ``PROMETHEUS_MULTIPROC_DIR``: processes of one host write them to files there, and ``/metrics`` of any of them shows the sums.
  What is kept in plain counters (``_PLAIN``) is written along every second, and at the end.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from replsite.metrics.measure import filled
from replsite.metrics.port import MetricsPort
from replsite.metrics.sources import ProcessScrape
from replsite.metrics.synapse import SynapseNames
from replsite.metrics.table import PLAIN
from streams.replication.errors import ReplicationError
from streams.replication.transport.addresses import Address
from streams.runtime.command_line import service_begins
from streams.runtime.logs import get_logger

__all__ = ["PlainFigures", "ProcessCollector", "begin", "folder_of_processes", "listen", "registries"]

log = get_logger(__name__)
FLUSH_SECONDS = 1.0


class ProcessCollector(Collector):
    """Gives the plain counters of this process to one scrape."""

    def describe(self) -> Iterator[Metric]:
        """The names."""
        return (one.family() for one in PLAIN)

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now."""
        return filled(PLAIN, ProcessScrape())


_PLAIN = ProcessCollector()


class PlainFigures:
    """Plain counters of this process as values that ``MultiProcessCollector`` finds in its file."""

    def __init__(self, collector: Collector = _PLAIN) -> None:
        self._collector = collector
        self._metrics: dict[str, Any] = {}
        self._told: dict[tuple[str, tuple[str, ...]], float] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()

    def flush(self) -> None:
        """Write what has changed. After a fork the child's counters go on from the parent's, which tells its own."""
        with self._lock:
            if self._process != os.getpid():
                self._process = os.getpid()
                self._told = dict(self._now())
                return
            for key, value in self._now():
                self._write(key, value)

    def _now(self) -> Iterator[tuple[tuple[str, tuple[str, ...]], float]]:
        for family in self._collector.collect():
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    metric = self._metric(family, tuple(sample.labels))
                    yield (family.name, tuple(sample.labels[name] for name in metric._labelnames)), sample.value

    def _metric(self, family: Metric, labels: tuple[str, ...]) -> Any:
        if family.name not in self._metrics:
            if family.type == "counter":
                made: Any = Counter(family.name, family.documentation, labels, registry=None)
            else:
                made = Gauge(family.name, family.documentation, labels, registry=None, multiprocess_mode="livesum")
            self._metrics[family.name] = made
        return self._metrics[family.name]

    def _write(self, key: tuple[str, tuple[str, ...]], value: float) -> None:
        metric = self._metrics[key[0]]
        child = metric.labels(*key[1]) if key[1] else metric
        if isinstance(metric, Gauge):
            child.set(value)
        elif (more := value - self._told.get(key, 0.0)) > 0:
            child.inc(more)
        self._told[key] = value


class _AllProcesses(Collector):
    """Those of this host that write to the folder; gauges of processes that are gone are dropped."""

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        _FIGURES.flush()
        folder = folder_of_processes()
        _forget_dead(Path(folder))
        found: Iterable[Metric] = MultiProcessCollector(None, folder).collect()
        return found


_FIGURES = PlainFigures()


def folder_of_processes() -> str:
    """Where processes write; empty when that is not wanted."""
    return os.environ.get("PROMETHEUS_MULTIPROC_DIR", "")


def _forget_dead(folder: Path) -> None:
    for file in folder.glob("gauge_live*.db"):
        number = file.stem.rpartition("_")[2]
        if number.isdecimal() and not _lives(int(number)):
            mark_process_dead(number, str(folder))


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def registries() -> list[CollectorRegistry]:
    """What ``/metrics`` shows beside the cluster; nothing when processes have ports of their own."""
    if folder_of_processes():
        return [_OF_ALL]
    return [] if _ports() else [_OF_THIS]


_has_begun = _has_listened = False


# --- a process that begins ----------------------------------------------------------------------------------------------
def begin() -> None:
    """Called when Django is ready: count, and write it to files if the settings say so. Once, however often apps are loaded."""
    global _has_begun  # noqa: PLW0603 - one per process by its nature
    if _has_begun:
        return
    _has_begun = True
    REGISTRY.register(_PLAIN)
    if folder_of_processes():
        _flush_for_ever()
        os.register_at_fork(after_in_child=_flush_for_ever)
        atexit.register(_FIGURES.flush)
    service_begins.connect(listen, dispatch_uid="replsite.process_metrics")


def listen(**_: Any) -> None:
    """Called where a process begins to serve: show what it counts on a port of its own, if the settings name any. Once."""
    global _has_listened  # noqa: PLW0603 - one per process by its nature
    ports = () if folder_of_processes() else _ports()
    if ports and not _has_listened:
        _has_listened = True
        _listen(ports)


def _ports() -> tuple[int, ...]:
    return tuple(getattr(settings, "REPLSITE_METRICS_PORTS", ()))


def _flush_for_ever() -> None:
    over = threading.Event()

    def run() -> None:
        while not over.wait(FLUSH_SECONDS):
            _FIGURES.flush()

    threading.Thread(target=run, name="replsite-metrics", daemon=True).start()


def _listen(ports: Sequence[int]) -> None:
    """On the first port that is free."""
    host = getattr(settings, "REPLSITE_METRICS_HOST", "127.0.0.1")
    for port in ports:
        try:
            MetricsPort(Address(host, port), lambda: generate_latest(_OF_THIS)).start()
        except ReplicationError:
            continue
        log.info("metrics.listening", address=f"{host}:{port}")
        return
    log.warning("metrics.no_port", host=host, first=ports[0], last=ports[-1])


def _made_of(collector: Any) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(SynapseNames(collector))
    return registry


_OF_THIS = _made_of(REGISTRY)
_OF_ALL = _made_of(_AllProcesses())
