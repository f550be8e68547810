"""What processes count themselves, while events are stored, readers handle facts and jobs change tables."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, transaction
from django.db.utils import OperationalError
from django.test.utils import CaptureQueriesContext
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from pipeline.models import Job, JobState
from replsite.live_rows.shared import SharedSnapshot
from replsite.metrics import cluster, process
from replsite.metrics.synapse import SynapseNames
from replsite.metrics.table import CLUSTER, PROCESS
from state.models import StateGroup
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.follow import lag_histogram
from streams.follow.lag_histogram import DelaySamples, age_sql
from streams.jobs.counts import changed_rows, count_rows
from streams.models import Reader, WireCount
from tests.support.made_rooms import BOB, public_room
from tests.support.persisted_rooms import incoming, persist
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.writing import append

pytestmark = pytest.mark.django_db(transaction=True)


def value(name, **labels):
    return REGISTRY.get_sample_value(name, labels) or 0.0


class Change:
    """By how much samples change within the block."""

    def __init__(self, *keys):
        self._keys = keys

    def _now(self):
        return [value(name, **labels) for name, labels in self._keys]

    def __enter__(self):
        self._before = self._now()
        return self

    def __exit__(self, *_):
        self.by = [after - before for before, after in zip(self._before, self._now(), strict=True)]


# --- events ---------------------------------------------------------------------------------------------------------------

EVENTS = "replsite_events_persisted_total"
BY_TYPE = "replsite_events_persisted_by_type_total"
GROUPS = "replsite_state_groups_written_total"


def conversation():
    made = public_room()
    made.member(BOB, "join")
    made.message(sender=BOB)
    made.message(sender=BOB)
    return made


def test_stored_events_are_counted_by_origin_and_type(settings):
    settings.REPLSITE_SERVER_NAME = "elsewhere.test"
    made = conversation()
    keys = (EVENTS, {"origin": "remote"}), (BY_TYPE, {"type": "m.room.message", "origin": "remote"})
    with Change(*keys) as change:
        persist([incoming(event) for event in made.events])
        persist([incoming(event) for event in made.events])
    assert change.by == [len(made.events), 2]


def test_senders_of_this_server_are_local(settings):
    made = conversation()
    settings.REPLSITE_SERVER_NAME = BOB.partition(":")[2]
    with Change((BY_TYPE, {"type": "m.room.message", "origin": "local"})) as change:
        persist([incoming(event) for event in made.events])
    assert change.by == [2]


def test_events_that_were_rolled_back_are_not_counted():
    made = conversation()
    with (
        Change((EVENTS, {"origin": "local"}), (EVENTS, {"origin": "remote"})) as change,
        pytest.raises(ZeroDivisionError),
        transaction.atomic(),
    ):
        persist([incoming(event) for event in made.events])
        raise ZeroDivisionError
    assert change.by == [0, 0]


def test_state_groups_are_counted_as_they_were_written():
    made = conversation()
    kinds = [(GROUPS, {"kind": kind}) for kind in ("full", "delta", "reused")]
    with Change(*kinds, ("replsite_state_chain_hops_count", {})) as change:
        persist([incoming(event) for event in made.events])
    stored = StateGroup.objects.count()
    full, delta, reused, observed = change.by
    assert full == StateGroup.objects.filter(prev_group=None).count() >= 1
    assert (full + delta, observed) == (stored, stored)
    assert reused == len(made.events) - stored == 2


def test_types_that_nobody_specified_are_other():
    made = public_room()
    for name in ("org.example.x", "org.example.y"):
        made.send({"type": name})
    others = [(BY_TYPE, {"type": "other", "origin": origin}) for origin in ("local", "remote")]
    with Change(*others) as change:
        persist([incoming(event) for event in made.events])
    assert sum(change.by) == 2


# --- readers --------------------------------------------------------------------------------------------------------------


def test_the_age_of_a_handled_fact_is_sampled_by_the_databases_clock(monkeypatch):
    monkeypatch.setattr(lag_histogram, "SAMPLE_SECONDS", 0.0)
    (token,) = append()
    CacheInvalidation.objects.writable().update(received_at="2020-01-01T00:00:00Z")
    labels = {"reader": "r-age", "stream": "caches"}
    DelaySamples("r-age", "caches", "default").handled(token)
    assert value("replsite_reader_delay_seconds_count", **labels) == 1
    assert value("replsite_reader_delay_seconds_sum", **labels) > 86_400


def test_samples_are_taken_a_few_times_a_second_at_most(django_assert_num_queries):
    tokens = append(50)
    samples = DelaySamples("r-often", "caches", "default")
    with django_assert_num_queries(1):
        for token in tokens:
            samples.handled(token)


def test_a_fact_that_was_trimmed_is_no_sample():
    DelaySamples("r-trimmed", "caches", "default").handled(10**15)
    assert value("replsite_reader_delay_seconds_count", reader="r-trimmed", stream="caches") == 0


def test_a_database_that_is_away_is_the_readers_business(monkeypatch):
    samples = DelaySamples("r-away", "caches", "default")

    def away(token):
        raise OperationalError("gone")

    monkeypatch.setattr(samples, "_age", away)
    samples.handled(1)


@pytest.mark.parametrize("stream", registry.all_streams(), ids=lambda stream: stream.name)
@pytest.mark.usefixtures("new_tables")
def test_the_age_can_be_asked_of_every_stream(stream):
    with connection.cursor() as cursor:
        cursor.execute(age_sql(stream.declaration), {"id": 1})
        assert cursor.fetchone() == (None,)
        cursor.execute("EXPLAIN " + age_sql(stream.declaration), {"id": 1})


# --- jobs -----------------------------------------------------------------------------------------------------------------


def test_what_jobs_changed_is_added_up():
    for before, after in (({"events": 10, "rows": 5}, {"events": 4, "rows": 5}), ({"events": 4}, {"events": 3})):
        job = Job.objects.create(kind="purge history", state=JobState.DONE, before=before, after=after)
        count_rows(job.pk, "default")
    assert WireCount.objects.get(kind="job rows").name == "purge history|events|removed"
    assert WireCount.objects.get(kind="job rows").total == 7


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({"a": 1}, {"a": 3}, [("a", "added", 2)]),
        ({"a": 1}, {"b": 3}, []),
        ({"a": None, "b": "x", "c": 1}, {"a": 1, "b": 2, "c": 1}, []),
        ({"a|b": 1}, {"a|b": 2}, []),
        ({}, {}, []),
    ],
)
def test_only_numbers_that_differ_are_changes(before, after, changed):
    assert list(changed_rows(before, after)) == changed


def test_a_dry_run_changes_nothing():
    about = {"kind": "purge history", "state": JobState.DONE, "before": {"events": 4}, "after": {"events": 3}}
    count_rows(Job.objects.create(**about, arguments={"dry_run": True}).pk, "default")
    assert not WireCount.objects.exists()
    count_rows(Job.objects.create(**about, arguments={"dry_run": False}).pk, "default")
    assert WireCount.objects.get().total == 1


def test_a_job_without_figures_changes_nothing():
    count_rows(Job.objects.create(kind="check streams", state=JobState.DONE).pk, "default")
    assert not WireCount.objects.exists()


# --- a scrape ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def page():
    """A page of metrics whose snapshot is read in this thread."""
    registry_of_cluster = CollectorRegistry()
    shared = SharedSnapshot()
    registry_of_cluster.register(SynapseNames(cluster.SnapshotCollector(shared.get)))
    return registry_of_cluster, shared


def queries_of(registry_of_cluster):
    with CaptureQueriesContext(connection) as queries:
        generate_latest(registry_of_cluster)
    return len(queries)


def test_a_scrape_reads_the_database_once_however_many_readers_there_are(page):
    append()
    registry_of_cluster, shared = page
    generate_latest(registry_of_cluster)
    shared._read_at = float("-inf")
    few = queries_of(registry_of_cluster)
    writer = {"caches": {"master": 1}}
    Reader.objects.bulk_create(
        Reader(key=f"k{n}", name=f"reader-{n}", kind="follower", positions=writer) for n in range(50)
    )
    shared._read_at = float("-inf")
    many = queries_of(registry_of_cluster)
    assert few <= many <= few + 2, "more readers cost no more queries; the first that lags may read its window"
    assert queries_of(registry_of_cluster) == 0, "a second scrape within the second shares the snapshot"
    assert many < 25


def test_every_name_of_ours_is_on_the_page_or_described():
    described = {family.name for family in cluster.SnapshotCollector().describe()}
    assert {metric.name for metric in CLUSTER} <= described


def test_names_of_processes_are_registered_once():
    names = [family.name for family in REGISTRY.collect()]
    assert len(names) == len(set(names))
    assert {metric.name for metric in PROCESS if metric.type == "histogram"} <= set(names)


def test_a_snapshot_that_hangs_is_as_good_as_away(monkeypatch):
    let_go = threading.Event()
    hanging = cluster.Deadline(lambda: let_go.wait(DEADLINE_SECONDS), 0.2, "hanging")
    monkeypatch.setattr(cluster, "_IN_TIME", hanging)
    text = generate_latest(cluster._COLLECTOR).decode()
    let_go.set()
    assert "replsite_snapshot_up 0.0" in text
    assert "replsite_stream_position" not in text


def test_plain_counters_are_told_in_steps_and_gauges_as_they_are():
    seen = {"replsite_wait_timeouts_total": 5.0}

    class Some(process.Collector):
        def collect(self):
            yield PROCESS[0].family([(seen["replsite_wait_timeouts_total"], "events")])

    figures = process.MirroredCounters(Some())
    for total in (5.0, 5.0, 8.0, 7.0, 9.0):
        seen["replsite_wait_timeouts_total"] = total
        figures.flush()
    made = figures._metrics["replsite_wait_timeouts"].labels("events")
    assert made._value.get() == 10.0, "5, then 3 more, then 2: a counter that fell began anew"
