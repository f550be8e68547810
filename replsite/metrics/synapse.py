"""The same figures under the names that dashboards made for Synapse query.

Most are one of our families under another name, with other words for its labels and with ``server_name``, which those
dashboards filter by: `SynapseNames` adds these to whatever a collector gives. The rest are entries of the table themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from django.conf import settings
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from replsite.metrics.table import OWN, PROCESS
from streams.conf import stream_settings

__all__ = ["SynapseNames", "synapse_names_are_wanted"]

_ALIASES = {one.name: one.synapse for one in (*OWN, *PROCESS)}


def synapse_names_are_wanted() -> bool:
    """The setting; other projects need not have it."""
    return bool(getattr(settings, "REPLSITE_SYNAPSE_METRIC_NAMES", True))


class _Gives(Protocol):
    def collect(self) -> Iterable[Metric]: ...


class SynapseNames(Collector):
    """What a collector gives, and the same under Synapse's names where they are wanted."""

    def __init__(self, own: _Gives) -> None:
        self._own = own

    def describe(self) -> Iterable[Metric]:
        """So that registering it collects nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Ours first."""
        wanted, server_name = synapse_names_are_wanted(), stream_settings().server_name
        for family in self._own.collect():
            yield family
            for alias in _ALIASES.get(family.name, ()) if wanted else ():
                yield alias.of(family, server_name)
