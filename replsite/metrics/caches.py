"""Metrics of the cached functions of this process; each process has its own values, so each counts its own.

Read at scrape time from the counts that the caches keep anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from replsite.metric_name import MetricName
from streams.core.invalidation import stores

__all__ = ["CACHES", "CacheCollector"]

LOOKUPS = MetricName(
    "replsite_cache_lookups", ("cache", "result"), "Calls of cached functions: hit or miss", counter=True
)
ENTRIES = MetricName("replsite_cache_entries", ("cache",), "Values that are kept")
INVALIDATIONS = MetricName(
    "replsite_cache_invalidations", ("cache",), "Keys and whole caches dropped, by whomever", counter=True
)
EVICTIONS = MetricName("replsite_cache_evictions", ("cache",), "Values that made room for others", counter=True)
SPOILED = MetricName(
    "replsite_cache_spoiled", ("cache",), "Values not kept: dropped while they were computed", counter=True
)
CACHES = (LOOKUPS, ENTRIES, INVALIDATIONS, EVICTIONS, SPOILED)


class CacheCollector(Collector):
    """Gives the caches of this process to one scrape."""

    def describe(self) -> Iterator[Metric]:
        """The names."""
        return (name.family() for name in CACHES)

    def collect(self) -> Iterator[Metric]:
        """The counts as they are now."""
        families = {name: name.family() for name in CACHES}
        for cache, store in sorted(stores.items()):
            counts = store.counts
            families[LOOKUPS].add_metric([cache, "hit"], counts.hits)
            families[LOOKUPS].add_metric([cache, "miss"], counts.misses)
            families[ENTRIES].add_metric([cache], len(store))
            families[INVALIDATIONS].add_metric([cache], counts.invalidations)
            families[EVICTIONS].add_metric([cache], counts.evictions)
            families[SPOILED].add_metric([cache], counts.spoiled)
        return (family for family in families.values() if family.samples)
