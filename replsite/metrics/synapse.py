"""The same figures under the names that dashboards made for Synapse query.

Most are one of our families under another name, with other words for its labels and with ``server_name``, which those
dashboards filter by: ``SynapseNames`` adds these to whatever a collector gives. What counts in other units, or of the stream
``events`` alone, is made of the snapshot.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from django.conf import settings
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from replsite.metric_name import MetricName
from replsite.metrics.names import (
    SYNAPSE_BACKGROUND,
    SYNAPSE_BUILD,
    SYNAPSE_LAG,
    SYNAPSE_LAST_TS,
    SYNAPSE_LINEAR,
    SYNAPSE_PERSISTED,
    SYNAPSE_POSITION,
    SYNAPSE_TASKS,
)
from replsite.snapshot.types import JobsView, ReaderStreamView, Snapshot
from replsite.status.verdicts import JobWord
from streams.conf import stream_settings

__all__ = ["ALIASES", "Alias", "SynapseNames", "add_synapse", "synapse_names_are_wanted"]


@dataclass(frozen=True, slots=True)
class Alias:
    """One of our metrics under Synapse's name: ``labels`` by their names there; those left out are summed over."""

    own: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)
    """Only samples with these labels."""
    fixed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further labels there: name -> our ``origin`` -> value."""

    def of(self, family: Metric, server_name: str) -> Metric:
        """The family under the other name."""
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

    def _labels(self, own: Mapping[str, str], server_name: str) -> Iterator[tuple[str, str]]:
        for name, value in own.items():
            if name in self.labels:
                yield self.labels[name], value
            elif name == "le":
                yield name, value
        for name, values in self.fixed.items():
            yield name, values[own["origin"]]
        yield "server_name", server_name


_TCP = "synapse_replication_tcp_"
_WORDS = {"command": "command", "name": "name"}
_NAME = {"name": "name"}
#: Other servers are as many as they like, so they do not become labels.
_ENTITY = {"local": "*client*", "remote": "*remote*"}
_ALL = (
    Alias(
        "replsite_stream_updates_sent", f"{_TCP}resource_stream_updates", {"stream": "stream_name"}
    ),
    Alias("replsite_reader_delay_seconds", "synapse_event_processing_lag_by_event", {"reader": "name"}, {"stream": "events"}),
    Alias("replsite_wait_timeouts", "synapse_notifier_wait_for_stream_token_timeouts", {"stream": "stream_key"}),
    Alias("replsite_replication_connections", f"{_TCP}resource_total_connections", {}, {"direction": "inbound"}),
    Alias("replsite_replication_commands_received", f"{_TCP}protocol_inbound_commands", _WORDS),
    Alias("replsite_replication_commands_sent", f"{_TCP}protocol_outbound_commands", _WORDS),
    Alias("replsite_replication_rdata_received", f"{_TCP}protocol_inbound_rdata_count", {"stream": "stream_name"}),
    Alias("replsite_replication_queue_length", f"{_TCP}command_queue", {"stream": "stream_name"}),
    Alias("replsite_replication_pending_commands", f"{_TCP}protocol_pending_commands", _NAME),
    Alias("replsite_replication_send_buffer_bytes", f"{_TCP}protocol_transport_send_buffer", _NAME),
    Alias(
        "replsite_replication_kernel_buffer_bytes", f"{_TCP}protocol_transport_kernel_send_buffer", _NAME,
        {"direction": "send"},
    ),
    Alias(
        "replsite_replication_kernel_buffer_bytes", f"{_TCP}protocol_transport_kernel_read_buffer", _NAME,
        {"direction": "read"},
    ),
    Alias("replsite_replication_closed", f"{_TCP}protocol_close_reason", {"reason": "reason_type"}),
    Alias("replsite_events_persisted", "synapse_storage_events_persisted_events"),
    Alias(
        "replsite_events_persisted_by_type", "synapse_storage_events_persisted_events_sep",
        {"type": "type", "origin": "origin_type"}, fixed={"origin_entity": _ENTITY},
    ),
)  # fmt: skip
ALIASES: dict[str, tuple[Alias, ...]] = {
    own: tuple(alias for alias in _ALL if alias.own == own) for own in {alias.own for alias in _ALL}
}


def synapse_names_are_wanted() -> bool:
    """The setting; other projects need not have it."""
    return bool(getattr(settings, "REPLSITE_SYNAPSE_METRIC_NAMES", True))


class _Gives(Protocol):
    def collect(self) -> Iterable[Metric]: ...


class SynapseNames(Collector):
    """What a collector gives, and the same under Synapse's names where they are wanted."""

    def __init__(self, own: _Gives, describe: Callable[[], Iterable[Metric]] = tuple) -> None:
        self._own = own
        self._describe = describe

    def describe(self) -> Iterable[Metric]:
        """So that registering it collects nothing."""
        return self._describe()

    def collect(self) -> Iterator[Metric]:
        """Ours first."""
        wanted, server_name = synapse_names_are_wanted(), stream_settings().server_name
        for family in self._own.collect():
            yield family
            for alias in ALIASES.get(family.name, ()) if wanted else ():
                yield alias.of(family, server_name)


# --- what needs more than another name ----------------------------------------------------------------------------------


class Page(Protocol):
    """Where samples go."""

    def add(self, name: MetricName, value: float, *labels: str) -> None: ...


def add_synapse(
    page: Page, snapshot: Snapshot, on_events: Mapping[str, list[ReaderStreamView]], server_name: str
) -> None:
    """The figures of a snapshot that count otherwise there; ``on_events``: label -> readers of the stream ``events``."""
    linear: dict[tuple[str, str], int] = {}
    for stream in snapshot.streams:
        name = stream.name.partition("/")[2] if stream.recorded_from else stream.name
        linear.setdefault((name, stream.recorded_from or server_name), stream.linear_position)
        if stream.name == "events":
            page.add(SYNAPSE_PERSISTED, stream.linear_position, server_name)
            _add_readers(page, stream.last_fact_at or snapshot.as_of, snapshot.as_of, on_events, server_name)
    for labels, position in linear.items():
        page.add(SYNAPSE_LINEAR, position, *labels)
    page.add(SYNAPSE_BUILD, 1, platform.python_version(), f"replsite {snapshot.version}", platform.system())
    page.add(SYNAPSE_TASKS, sum(job.status.word == JobWord.RUNNING for job in snapshot.jobs.jobs), server_name)
    page.add(SYNAPSE_BACKGROUND, _background(snapshot.jobs), server_name)


def _add_readers(
    page: Page,
    last_fact_at: datetime,
    as_of: datetime,
    readers: Mapping[str, list[ReaderStreamView]],
    server_name: str,
) -> None:
    for label, views in readers.items():
        lag = max(view.lag_seconds for view in views)
        read_upto = as_of.timestamp() - lag if lag else last_fact_at.timestamp()
        page.add(SYNAPSE_POSITION, min(view.position for view in views), label, server_name)
        page.add(SYNAPSE_LAG, lag * 1000, label, server_name)
        page.add(SYNAPSE_LAST_TS, read_upto * 1000, label, server_name)


def _background(jobs: JobsView) -> int:
    """3: nothing is left to do; 2: a job is at work or waits; -1: the last one of a kind failed."""
    if any(job.status.word in (JobWord.RUNNING, JobWord.QUEUED, JobWord.WAITING) for job in jobs.jobs):
        return 2
    failed = any(
        kind.last_failure_at and (not kind.last_success_at or kind.last_failure_at > kind.last_success_at)
        for kind in jobs.kinds
    )
    return -1 if failed else 3
