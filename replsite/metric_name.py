"""What a metric is called, as it is exported and documented."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

__all__ = ["MetricName"]


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric as it is exported: name without ``_total``, labels, help text."""

    name: str
    labels: tuple[str, ...]
    help: str
    counter: bool = False

    def family(self) -> GaugeMetricFamily | CounterMetricFamily:
        """An empty family of this name."""
        kind = CounterMetricFamily if self.counter else GaugeMetricFamily
        return kind(self.name, self.help, labels=self.labels)
