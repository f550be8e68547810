"""Why WebSockets of the live page were closed, and how often, in this process; for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import IntEnum

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from replsite.metric_name import MetricName

__all__ = ["CLOSED", "Closing", "ViewerCollector", "closed"]

CLOSED = MetricName(
    "replsite_live_closed", ("reason",), "WebSockets of the live page that this process refused or closed", counter=True
)


class Closing(IntEnum):
    """The codes that a WebSocket is closed with."""

    FAILED = 1011
    NOT_UNDERSTOOD = 4400
    ANONYMOUS = 4401
    NO_STAFF = 4403
    FLOOD = 4429

    @property
    def label(self) -> str:
        """The reason in words."""
        return _LABELS[self]


_LABELS = {
    Closing.FAILED: "page not sent",
    Closing.NOT_UNDERSTOOD: "not understood",
    Closing.ANONYMOUS: "not logged in",
    Closing.NO_STAFF: "not staff",
    Closing.FLOOD: "too many messages",
}
closed: Counter[str] = Counter()


class ViewerCollector(Collector):
    """The counts as they are now; reasons that never came are left out."""

    def describe(self) -> Iterator[Metric]:
        """The name."""
        yield CLOSED.family()

    def collect(self) -> Iterator[Metric]:
        """One sample for each reason."""
        family = CLOSED.family()
        for reason, number in sorted(closed.items()):
            family.add_metric([reason], number)
        if family.samples:
            yield family
