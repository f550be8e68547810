"""What a metric is called, as it is exported and documented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase

__all__ = ["MetricName", "name_of"]


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric as it is exported: name without ``_total``, labels, help text. A gauge, unless it says otherwise."""

    name: str
    labels: tuple[str, ...]
    help: str
    counter: bool = False
    histogram: bool = False

    @property
    def type(self) -> str:
        """In Prometheus's words."""
        return "histogram" if self.histogram else "counter" if self.counter else "gauge"

    @property
    def exported(self) -> str:
        """The name that queries use; of a histogram, without what follows it."""
        return self.name + ("_total" if self.counter else "")

    def family(self) -> GaugeMetricFamily | CounterMetricFamily:
        """An empty family of this name."""
        kind = CounterMetricFamily if self.counter else GaugeMetricFamily
        return kind(self.name, self.help, labels=self.labels)


def name_of(metric: MetricWrapperBase) -> MetricName:
    """The name of one that prometheus_client counts itself."""
    inner: Any = metric  # the library tells these by describe() only in part
    return MetricName(
        inner._name,
        tuple(inner._labelnames),
        inner._documentation,
        counter=isinstance(metric, Counter),
        histogram=isinstance(metric, Histogram),
    )
