"""Metrics of what this process remembers of the streams, and of who waits for news in it.

Read at scrape time; absent where nobody has asked yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from events.notifier import notifier
from events.notifier.cache import HotFigures
from replsite.metric_name import MetricName

__all__ = ["HOT", "HotCollector"]

WAITERS = MetricName("replsite_hot_waiters", (), "Callers that wait for news in this process")
WOKEN = MetricName("replsite_hot_woken", (), "Callers woken by what concerned them", counter=True)
REFUSED = MetricName("replsite_hot_refused", (), "Callers refused: as many waited as may", counter=True)
USERS = MetricName("replsite_hot_users", (), "Users whose rooms are remembered")
ENTRIES = MetricName("replsite_hot_entries", ("stream",), "Last changes that are remembered")
BEGUN = MetricName(
    "replsite_hot_begun_anew",
    ("reason",),
    "Times that everything, or a stream, was forgotten: connection, restored, trimmed, behind, error",
    counter=True,
)
HOT = (WAITERS, WOKEN, REFUSED, USERS, ENTRIES, BEGUN)
_REASONS = ("connection", "restored", "trimmed", "behind", "error")


class HotCollector(Collector):
    """Gives the memory of this process to one scrape."""

    def __init__(self, get: Callable[[], HotFigures | None] = notifier.figures) -> None:
        self._get = get

    def describe(self) -> Iterator[Metric]:
        """The names."""
        return (name.family() for name in HOT)

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now."""
        found = self._get()
        if found is None:
            return
        families = {name: name.family() for name in HOT}
        families[WAITERS].add_metric([], found.waiting)
        families[WOKEN].add_metric([], found.counts.get("woken", 0))
        families[REFUSED].add_metric([], found.counts.get("refused", 0))
        families[USERS].add_metric([], found.users)
        for stream, number in sorted(found.entries.items()):
            families[ENTRIES].add_metric([stream], number)
        for reason in _REASONS:
            families[BEGUN].add_metric([reason], found.counts.get(reason, 0))
        yield from (family for family in families.values() if family.samples)
