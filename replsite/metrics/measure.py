"""Defines the classes of the entries in the tables of ``replsite.metrics.table``.

`Measure` is a metric with the source of its samples. `Alias` is the name of a metric in Synapse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase

Row = tuple[Any, ...]
"""A value, then the labels' values. None as the value means no sample. A time is exported as seconds since 1970."""
Scraped = TypeVar("Scraped")


@dataclass(frozen=True, slots=True)
class Alias:
    """A metric's name in Synapse.

    ``labels`` maps our label names to Synapse's. Samples that differ only in other labels are added up.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)
    """Only samples with these labels are used."""
    fixed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels that only Synapse's metric has: name -> {value of our label ``origin`` -> value}."""

    def copy_of(self, family: Metric, server_name: str) -> Metric:
        """Returns the family under Synapse's name, with the label ``server_name``."""
        found = Metric(self.name, family.documentation, family.type)
        sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for sample in family.samples:
            if sample.name.endswith("_created") or any(sample.labels.get(k) != v for k, v in self.where.items()):
                continue
            key = sample.name.replace(family.name, self.name, 1), tuple(self._labels(sample.labels, server_name))
            sums[key] = sums.get(key, 0.0) + sample.value
        for (name, labels), value in sums.items():
            found.add_sample(name, dict(labels), value)
        return found

    def _labels(self, given: Mapping[str, str], server_name: str) -> Iterator[tuple[str, str]]:
        for name, value in given.items():
            if name in self.labels:
                yield self.labels[name], value
            elif name == "le":
                yield name, value
        for name, values in self.fixed.items():
            yield name, values[given["origin"]]
        yield "server_name", server_name


@dataclass(frozen=True, slots=True)
class Measure(Generic[Scraped]):
    """A metric. ``name`` is its name without the suffix ``_total``. ``rows`` computes its rows from a scrape."""

    name: str
    labels: tuple[str, ...]
    help: str
    type: str
    rows: Callable[[Scraped], Iterable[Row]]
    synapse: tuple[Alias, ...] = ()
    stands_for: str = ""
    """Only for a metric of Synapse that counts differently from ours: the name of our metric that it resembles."""

    @property
    def exported(self) -> str:
        """Returns the name as queries use it. For a histogram, this is the name without suffixes such as ``_bucket``."""
        return self.name + self._suffix

    @property
    def _suffix(self) -> str:
        return "_total" if self.type == "counter" else ""

    def names_of_synapse(self) -> Iterator[tuple[Alias, str, tuple[str, ...]]]:
        """Yields for each alias: the alias, its name as queries use it, and its labels."""
        for alias in self.synapse:
            yield alias, alias.name + self._suffix, (*alias.labels.values(), *alias.fixed, "server_name")

    def family(self, rows: Iterable[Row] = ()) -> Metric:
        """Returns the family with these rows as samples. Rows whose value is None are left out."""
        kind = CounterMetricFamily if self.type == "counter" else GaugeMetricFamily
        found = kind(self.name, self.help, labels=self.labels)
        for value, *labels in rows:
            if value is not None:
                found.add_metric(labels, value.timestamp() if isinstance(value, datetime) else value)
        return found


def metric(
    shown: str, text: str, rows: Callable[[Scraped], Iterable[Row]], *synapse: Alias, stands_for: str = ""
) -> Measure[Scraped]:
    """Returns the table entry of a metric: a counter if its name ends with ``_total``, else a gauge.

    ``shown`` is the name as queries use it, with the labels: ``name{label,label}``. ``synapse`` are the names under which
    Synapse has the same metric. If ``shown`` itself is a metric of Synapse, which counts differently from ours,
    ``stands_for`` is the name of our metric.
    """
    name, _, labels = shown.rstrip("}").partition("{")
    kind = "counter" if name.endswith("_total") else "gauge"
    split = tuple(labels.split(",")) if labels else ()
    return Measure(name.removesuffix("_total"), split, text, kind, rows, synapse, stands_for)


def counted_by_library(made: MetricWrapperBase, *synapse: Alias) -> Measure[Any]:
    """Returns the table entry of a metric that prometheus_client counts and exports itself. The entry has no rows."""
    inner: Any = made  # the library's describe() returns only some of these attributes
    kind = "histogram" if isinstance(made, Histogram) else "counter" if isinstance(made, Counter) else "gauge"
    return Measure(inner._name, tuple(inner._labelnames), inner._documentation, kind, lambda _: (), synapse)


def filled(table: Iterable[Measure[Scraped]], scraped: Scraped) -> Iterator[Metric]:
    """Yields the metric family of each entry of a table. Leaves out families without samples."""
    return (family for m in table if (family := m.family(m.rows(scraped))).samples)
