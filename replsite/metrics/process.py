"""Exports metrics that a process counts itself: readers' delays, stored events, caches, waits, Django's ``django_*``.

With several processes there are three ways to export them. ``docs/how-to/monitor-with-prometheus.md`` compares them:

- Default: they are on ``/metrics`` beside the cluster's metrics. This fits a single process, or scrapes that address
  each process.
- ``REPLSITE_METRICS_PORTS``: every process that serves has a port of its own for its metrics. A command that ends when
  its work is done has no such port. ``/metrics`` then has only the cluster's metrics, the same from any process.
- ``PROMETHEUS_MULTIPROC_DIR``: the processes of a host write their metrics to files in this folder. ``/metrics`` of any
  of these processes shows the sums. Plain counters (``_PLAIN``) are copied to the file every second and at exit.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from replsite.conf import site_settings
from replsite.metrics.measure import filled
from replsite.metrics.port import MetricsPort
from replsite.metrics.sources import ProcessScrape
from replsite.metrics.synapse import SynapseNames
from replsite.metrics.table import PLAIN
from streams.replication.errors import ReplicationError
from streams.replication.transport.addresses import Address
from streams.runtime.command_line import service_begins
from streams.runtime.logs import get_logger

log = get_logger(__name__)
FLUSH_SECONDS = 1.0


class ProcessCollector(Collector):
    """The collector of this process's plain counters, which do not use prometheus_client."""

    def describe(self) -> Iterator[Metric]:
        return (m.family() for m in PLAIN)

    def collect(self) -> Iterator[Metric]:
        return filled(PLAIN, ProcessScrape())


_PLAIN = ProcessCollector()


class MirroredCounters:
    """A copy of the plain counters as prometheus_client values.

    prometheus_client writes these values to the process's file, from which `MultiProcessCollector` reads them.
    """

    def __init__(self, collector: Collector = _PLAIN) -> None:
        self._collector = collector
        self._metrics: dict[str, Any] = {}
        self._written: dict[tuple[str, tuple[str, ...]], float] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()

    def flush(self) -> None:
        """Writes the values that have changed since the last flush."""
        with self._lock:
            # After a fork the child's counters start at the parent's values. The parent reports these itself. So the
            # child takes them as reported already, and writes only what it adds to them.
            if self._process != os.getpid():
                self._process = os.getpid()
                self._written = dict(self._now())
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
        elif (more := value - self._written.get(key, 0.0)) > 0:
            child.inc(more)
        self._written[key] = value


class _AllProcesses(Collector):
    """The collector for all processes of this host that write to ``PROMETHEUS_MULTIPROC_DIR``.

    Gauges of ended processes are dropped.
    """

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        _FIGURES.flush()
        folder = folder_of_processes()
        _forget_dead(Path(folder))
        found: Iterable[Metric] = MultiProcessCollector(None, folder).collect()
        return found


_FIGURES = MirroredCounters()


def folder_of_processes() -> str:
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
        return error.errno == errno.EPERM  # the process exists and belongs to another user
    return True


def registries() -> list[CollectorRegistry]:
    """Returns the registries whose metrics ``/metrics`` shows beside the metrics of the cluster.

    The list is empty if processes have ports of their own.
    """
    if folder_of_processes():
        return [_OF_ALL]
    return [] if site_settings().metrics_ports else [_OF_THIS]


_is_counting = _has_listened = False


# --- start of a process -------------------------------------------------------------------------------------------------
def start_counting() -> None:
    """Starts counting, and writing to files if ``PROMETHEUS_MULTIPROC_DIR`` is set. Repeated calls do nothing.

    Called when Django is ready, which may happen more than once in a process.
    """
    global _is_counting  # noqa: PLW0603 - one per process by its nature
    if _is_counting:
        return
    _is_counting = True
    REGISTRY.register(_PLAIN)
    if folder_of_processes():
        _flush_for_ever()
        os.register_at_fork(after_in_child=_flush_for_ever)  # threads do not survive a fork
        atexit.register(_FIGURES.flush)
    service_begins.connect(listen, dispatch_uid="replsite.process_metrics")


def listen(**_: Any) -> None:
    """Opens a port for this process's metrics if ``REPLSITE_METRICS_PORTS`` names any. Repeated calls do nothing.

    Called when a process begins to serve.
    """
    global _has_listened  # noqa: PLW0603 - one per process by its nature
    ports = () if folder_of_processes() else site_settings().metrics_ports
    if ports and not _has_listened:
        _has_listened = True
        _listen(ports)


def _flush_for_ever() -> None:
    over = threading.Event()

    def run() -> None:
        while not over.wait(FLUSH_SECONDS):
            _FIGURES.flush()

    threading.Thread(target=run, name="replsite-metrics", daemon=True).start()


def _listen(ports: Sequence[int]) -> None:
    host = site_settings().metrics_host
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
