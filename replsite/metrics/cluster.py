"""Serves ``/metrics``: metrics of the whole cluster, computed from the site snapshot at each scrape, and of processes.

Positions and lag come from the database. So ``/metrics`` of any process shows the whole cluster, and processes cannot
contradict each other. The page also has the counters of processes (`process`). If the database cannot be reached, the
page is still served, with ``replsite_snapshot_up 0`` and without outdated figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from django.db import Error as DjangoError
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from replsite.conf import site_settings
from replsite.http.deadline import Deadline, NoAnswer
from replsite.http.request_places import CAME
from replsite.live_rows.shared import SHARED
from replsite.live_rows.snapshot import Snapshot
from replsite.metrics import process
from replsite.metrics.exposition import as_text
from replsite.metrics.measure import filled
from replsite.metrics.shared_rendering import SharedRendering
from replsite.metrics.sources import Scrape
from replsite.metrics.synapse import SynapseNames
from replsite.metrics.table import CLUSTER, SYNAPSE, UP
from streams.conf import stream_settings
from streams.runtime.logs import get_logger

log = get_logger(__name__)


def families(snapshot: Snapshot, *, synapse_names: bool, server_name: str, seconds: float = 0.0) -> Iterator[Metric]:
    """Yields the snapshot's metric families. ``seconds`` is the time that it took to read the snapshot, itself a metric."""
    return filled((*CLUSTER, *SYNAPSE) if synapse_names else CLUSTER, Scrape(snapshot, server_name, seconds))


class SnapshotCollector(Collector):
    """The collector of the snapshot's metrics."""

    def __init__(self, get: Callable[[], Snapshot] = SHARED.get) -> None:
        self._get = get
        self._is_away = False

    def describe(self) -> Iterator[Metric]:
        """Yields all families without samples, so that registration does not read the database."""
        return (name.family() for name in (*CLUSTER, *SYNAPSE))

    def collect(self) -> Iterator[Metric]:
        """Yields the families of the shared snapshot. Without a database, yields only ``replsite_snapshot_up 0``."""
        started = time.monotonic()
        try:
            snapshot = self._get()
        except DjangoError as error:
            self._log_change(str(error).strip())
            yield UP.family([(0,)])
            return
        self._log_change("")
        server_name, seconds = stream_settings().server_name, time.monotonic() - started
        yield from families(
            snapshot, synapse_names=site_settings().synapse_metric_names, server_name=server_name, seconds=seconds
        )

    def _log_change(self, error: str) -> None:
        if error and not self._is_away:
            log.warning("metrics.no_snapshot", error=error)
        elif self._is_away and not error:
            log.info("metrics.snapshot_again")
        self._is_away = bool(error)


_IN_TIME = Deadline(SHARED.get, site_settings().health_seconds, "replsite-metrics")


def _get_in_time() -> Snapshot:
    # A database that hangs counts as away; otherwise every scrape would hang with it.
    try:
        return _IN_TIME.ask()
    except NoAnswer as error:
        raise OperationalError(str(error)) from error


_COLLECTOR = SynapseNames(SnapshotCollector(_get_in_time))


def _render() -> bytes:
    return as_text(_COLLECTOR.collect()) + b"".join(generate_latest(registry) for registry in process.registries())


_SHARED_PAGE = SharedRendering(_render)


def metrics_view(request: HttpRequest) -> HttpResponse:
    """Answers ``/metrics``: the cluster's metrics, then those of Django and of processes."""
    # The request's arrival, before it waited for a place: see `SharedRendering.get`.
    came = getattr(request, "scope", {}).get(CAME) or time.monotonic()
    return HttpResponse(_SHARED_PAGE.get(came), content_type=CONTENT_TYPE_LATEST)
