"""Exports metrics under Synapse's names, for dashboards that were made for Synapse.

Most of these metrics are metrics of this site under another name. They have other label names, and the label
``server_name``, by which those dashboards filter. `SynapseNames` adds them to the families of a collector. Metrics that
also differ from ours in units or meaning are entries of the table `SYNAPSE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from replsite.conf import site_settings
from replsite.metrics.table import CLUSTER, PROCESS
from streams.conf import stream_settings

_ALIASES = {m.name: m.synapse for m in (*CLUSTER, *PROCESS)}


class _Gives(Protocol):
    def collect(self) -> Iterable[Metric]: ...


class SynapseNames(Collector):
    """A collector that yields the families of another collector and, if configured, their copies under Synapse's names."""

    def __init__(self, collector: _Gives) -> None:
        self._collector = collector

    def describe(self) -> Iterable[Metric]:
        """Returns no families, so that registration does not collect the metrics."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yields each family of the other collector, followed by its copies under Synapse's names."""
        wanted, server_name = site_settings().synapse_metric_names, stream_settings().server_name
        for family in self._collector.collect():
            yield family
            for alias in _ALIASES.get(family.name, ()) if wanted else ():
                yield alias.copy_of(family, server_name)
