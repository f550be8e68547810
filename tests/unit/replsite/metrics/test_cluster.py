"""Metric families made of a snapshot, read back with prometheus_client's own parser."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from django.db import OperationalError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from replsite.live_rows.jobs import JobFigures, JobsView, QueryFigures
from replsite.live_rows.readers import WaitingView
from replsite.live_rows.storage import StorageView, TableView
from replsite.live_rows.streams import ExpectedRow
from replsite.live_rows.workers import CountView, SyncingView
from replsite.metrics import cluster
from replsite.metrics.cluster import SnapshotCollector
from replsite.metrics.process import ProcessCollector
from replsite.metrics.shared_rendering import SharedRendering
from replsite.metrics.synapse import SynapseNames
from replsite.metrics.table import CLUSTER, SYNAPSE
from replsite.status.words import ReaderWord, Severity, Verdict
from streams.reading.reader_table import NAMED
from streams.runtime.text import MOST_LABELS
from streams.waiting import wait
from tests.support.snapshots import (
    NOW,
    STUCK,
    a_holder,
    a_job,
    a_reader,
    a_snapshot,
    a_stream,
    a_writer,
    ago,
    on_stream,
    some_workers,
)
from tests.support.waiting import wait_until


def scrape(*parts, **changes):
    """{(name, label pairs): value} of a scrape of the snapshot."""
    return read(SnapshotCollector(lambda: a_snapshot(*parts, **changes)))


def read(collector):
    registry = CollectorRegistry()
    registry.register(SynapseNames(collector))
    text = generate_latest(registry).decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}


def _storage(unreferenced):
    return StorageView(
        NOW, TableView("", 1, 2), state_groups=10, state_group_rows=20, unreferenced_groups=unreferenced,
        standbys=(("standby1", True), ("standby2", False)),
    )  # fmt: skip


def value(found, metric, /, **labels):
    return found[metric, tuple(sorted(labels.items()))]


def test_writers_are_exported():
    found = scrape(a_stream(a_writer("w", last_write_at=ago(9))))
    of_w = {"stream": "events", "writer": "w"}
    assert value(found, "replsite_stream_position", **of_w) == 10
    assert value(found, "replsite_stream_facts_completed_total", **of_w) == 9
    assert value(found, "replsite_stream_last_fact_timestamp_seconds", **of_w) == ago(9).timestamp()
    assert value(found, "replsite_stream_last_advance_timestamp_seconds", **of_w) == ago(5).timestamp()


def test_streams_are_exported():
    found = scrape(a_stream(a_writer(), linear_position=8, holders=(a_holder(2.0), a_holder(4.5))))
    assert value(found, "replsite_stream_open_appends", stream="events") == 2
    assert value(found, "replsite_stream_oldest_open_seconds", stream="events") == 4.5
    assert value(found, "replsite_stream_linear_position", stream="events") == 8
    assert value(found, "replsite_stream_sequence_value", stream="events") == 11


def test_readers_are_exported_with_one_status_word():
    found = scrape(a_stream(), a_reader("sender", on_stream(lag_facts=5, lag_seconds=2.5, status=STUCK)))
    assert value(found, "replsite_reader_lag_facts", reader="sender", stream="events") == 5
    assert value(found, "replsite_reader_lag_seconds", reader="sender", stream="events") == 2.5
    assert value(found, "replsite_reader_position", reader="sender", stream="events", writer="master") == 10
    words = {
        word: value(found, "replsite_reader_status", reader="sender", stream="events", status=word)
        for word in ReaderWord
    }
    assert [word for word, on in words.items() if on] == ["stuck"]


def test_readers_of_one_name_are_shown_as_the_worst_of_them():
    far = a_reader("x", on_stream(positions={"master": 2}, lag_facts=8), key="2")
    found = scrape(a_stream(), a_reader("x"), far)
    assert value(found, "replsite_reader_position", reader="x", stream="events", writer="master") == 2
    assert value(found, "replsite_reader_lag_facts", reader="x", stream="events") == 8


def test_words_with_spaces_between_them_are_a_plain_name():
    """The reader of the live pipeline was called ``other``."""
    found = scrape(a_stream(), a_reader("pipeline statistics"))
    assert value(found, "replsite_reader_lag_facts", reader="pipeline statistics", stream="events") == 0


@pytest.mark.parametrize("name", ["<b>", "a  b", "a ", " a", "x" * 1000, "x " * 30 + "x", "", 'quote"', "\n", "a\n"])
def test_names_that_are_not_plain_are_other(name):
    assert value(scrape(a_stream(), a_reader(name)), "replsite_reader_lag_facts", reader="other", stream="events") == 0


def test_labels_are_bounded_however_many_names_peers_choose():
    found = scrape(a_stream(), *(a_reader(f"peer-{n}") for n in range(500)))
    assert len({labels for name, labels in found if name == "replsite_reader_lag_facts"}) == MOST_LABELS + 1


def test_readers_with_a_problem_have_their_own_label_in_any_crowd():
    crowd = [a_reader(f"peer-{n:03}") for n in range(500)]
    stuck, mailer = a_reader("zz-top", on_stream(status=STUCK)), a_reader("zz-mailer", key=f"{NAMED}zz-mailer")
    found = scrape(a_stream(), *crowd, mailer, stuck)
    assert value(found, "replsite_reader_status", reader="zz-top", stream="events", status="stuck") == 1
    assert value(found, "replsite_reader_lag_facts", reader="zz-mailer", stream="events") == 0
    assert ("replsite_reader_lag_facts", (("reader", "peer-097"), ("stream", "events"))) in found
    assert ("replsite_reader_lag_facts", (("reader", "peer-098"), ("stream", "events"))) not in found


def test_connections_count_open_ones_by_direction():
    found = scrape(a_reader("a", kind="connection"), a_reader("b", kind="connection", closed_at=NOW), a_reader("c"))
    assert value(found, "replsite_replication_connections", direction="inbound") == 1
    assert value(found, "replsite_replication_connections", direction="outbound") == 1


def test_synapse_names_tell_the_same_in_their_units():
    found = scrape(a_stream(a_writer()), a_reader("sender", on_stream(position=7, lag_facts=3, lag_seconds=2.5)))
    assert value(found, "synapse_storage_stream_current_position", stream_name="events", server_name="localhost") == 10
    assert value(found, "synapse_event_persisted_position", server_name="localhost") == 10
    assert value(found, "synapse_event_processing_positions", name="sender", server_name="localhost") == 7
    assert value(found, "synapse_event_processing_lag", name="sender", server_name="localhost") == 2500
    assert (
        value(found, "synapse_event_processing_last_ts", name="sender", server_name="localhost")
        == ago(2.5).timestamp() * 1000
    )


def test_workers_are_exported():
    found = scrape(workers=some_workers())
    assert value(found, "replsite_syncing_users") == 321
    assert value(found, "replsite_worker_syncing_users", worker="worker1") == 320
    assert value(found, "replsite_federation_acknowledged_position", sender="sender1") == 4_711
    assert value(found, "replsite_user_addresses") == 654


def test_ends_refusals_and_drops_are_exported_by_reason():
    found = scrape(workers=some_workers())
    assert value(found, "replsite_replication_closed_total", reason="ping timeout") == 17
    assert value(found, "replsite_connections_refused_total", reason="no client certificate") == 19
    assert value(found, "replsite_replication_commands_received_total", command="PING", name="worker1") == 987
    assert value(found, "replsite_replication_commands_sent_total", command="RDATA", name="worker1") == 4_321
    assert value(found, "replsite_stream_updates_sent_total", stream="events") == 77
    assert value(found, "replsite_replication_rdata_received_total", stream="events") == 55
    assert value(found, "replsite_worker_reports_dropped_total", command="USER_IP") == 3


def test_names_that_workers_choose_do_not_become_labels_without_end():
    syncing = tuple(SyncingView(f"w{n}", "x", "", 1, NOW) for n in range(MOST_LABELS + 50))
    odd = SyncingView('od"d\n', "x", "", 1, NOW)
    found = scrape(workers=some_workers(syncing=(*syncing, odd)))
    labels = [labels for name, labels in found if name == "replsite_worker_syncing_users"]
    assert len(labels) == MOST_LABELS + 1
    assert value(found, "replsite_worker_syncing_users", worker="other") == 51


def test_synapse_names_can_be_switched_off(settings):
    settings.REPLSITE_SYNAPSE_METRIC_NAMES = False
    assert not [name for name, _ in scrape(a_stream(a_writer()), a_reader()) if name.startswith("synapse")]


def test_database_away_is_told_and_nothing_old_is_shown(monkeypatch):
    monkeypatch.setattr(wait, "timed_out", Counter())  # those are this process's own, and need no database

    def away():
        raise OperationalError("no route to host")

    registry = CollectorRegistry()
    registry.register(SnapshotCollector(away))
    samples = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert samples == ["replsite_snapshot_up 0.0"]


def test_waits_that_timed_out_are_counted_per_stream_under_both_names(monkeypatch):
    monkeypatch.setattr(wait, "timed_out", Counter(events=3))
    found = read(ProcessCollector())
    assert value(found, "replsite_wait_timeouts_total", stream="events") == 3
    theirs = "synapse_notifier_wait_for_stream_token_timeouts_total"
    assert value(found, theirs, stream_key="events", server_name="localhost") == 3


def test_every_name_is_exported_by_a_full_snapshot(settings):
    settings.REPLSITE_JOB_PERIODS = {"censor": 86_400}
    jobs = JobsView((a_job(),), (JobFigures("censor", ago(5), ago(9)),), (QueryFigures("mine", 7, ago(3)),))
    readers = a_reader("f"), a_reader("c", kind="connection")
    expected = ExpectedRow("events", "web-{n}", 1, None, None, Verdict("there", Severity.FINE, ""))
    storage = _storage(3)
    found = scrape(
        a_stream(a_writer(), expected=(expected,)), *readers, workers=some_workers(), jobs=jobs, storage=storage
    )
    exported = {name for name, _ in found}
    labels = {metric.exported: set(metric.labels) for metric in (*CLUSTER, *SYNAPSE)}
    assert all({key for key, _ in pairs} == labels[name] for name, pairs in found if name in labels)
    aliases = {name for metric in CLUSTER for _, name, _ in metric.names_of_synapse()}
    assert {metric.exported for metric in (*CLUSTER, *SYNAPSE)} | aliases == exported


def test_what_waits_for_connections_is_told_by_name_and_in_sum():
    waits = WaitingView(lines=7, kernel_send_bytes=300, kernel_read_bytes=20)
    one, other = (a_reader("w", kind="connection", key=k, buffer_bytes=1_000, waiting=waits) for k in "ab")
    found = scrape(a_stream(), one, other, a_reader("w<", kind="connection"))
    assert value(found, "replsite_replication_pending_commands", name="w") == 14
    assert value(found, "replsite_replication_send_buffer_bytes", name="w") == 2_000
    assert value(found, "replsite_replication_kernel_buffer_bytes", name="w", direction="send") == 600
    theirs = "synapse_replication_tcp_protocol_transport_kernel_read_buffer"
    assert value(found, theirs, name="w", server_name="localhost") == 40
    assert value(found, "replsite_replication_pending_commands", name="other") == 0


def test_rows_that_followers_have_not_handled_are_told_by_stream():
    queued = a_reader("f", waiting=WaitingView(queued={"events": 12}))
    found = scrape(a_stream(), queued, a_reader("g", on_stream("caches")))
    assert value(found, "replsite_replication_queue_length", stream="events") == 12
    assert value(found, "synapse_replication_tcp_command_queue", stream_name="caches", server_name="localhost") == 0


def test_clients_whose_names_are_too_many_or_odd_are_counted_together():
    counts = tuple(CountView("received", f"PING peer-{n:03}", 1) for n in range(MOST_LABELS + 50))
    found = scrape(workers=some_workers(counts=(*counts, CountView("received", "PING <b>", 5))))
    labels = [labels for name, labels in found if name == "replsite_replication_commands_received_total"]
    assert len(labels) == MOST_LABELS + 1
    assert value(found, "replsite_replication_commands_received_total", command="PING", name="other") == 55


def test_what_storage_holds_is_told_as_far_as_it_was_counted():
    found = scrape(storage=_storage(None))
    assert value(found, "replsite_state_groups") == 10
    assert value(found, "replsite_state_group_rows") == 20
    assert not [name for name, _ in found if name == "replsite_state_groups_unreferenced"]


@pytest.mark.parametrize(
    ("jobs", "status"),
    [
        (JobsView(), 3),
        (JobsView((a_job(),)), 2),
        (JobsView((a_job(status=Verdict("waiting", Severity.WARNING, "")),)), 2),
        (JobsView((), (JobFigures("censor", ago(9), ago(5)),)), -1),
        (JobsView((), (JobFigures("censor", ago(5), ago(9)),)), 3),
    ],
)
def test_jobs_are_told_as_background_updates(jobs, status):
    assert value(scrape(jobs=jobs), "synapse_background_update_status", server_name="localhost") == status


def test_queries_of_the_live_pipeline_are_told():
    found = scrape(jobs=JobsView((), (), (QueryFigures("mine", 7, ago(3)),)))
    assert value(found, "replsite_pipeline_batches_total", query="mine") == 7
    assert value(found, "replsite_pipeline_last_batch_timestamp_seconds", query="mine") == ago(3).timestamp()


def test_the_snapshots_own_time_is_told_to_compare_with():
    assert value(scrape(), "replsite_snapshot_timestamp_seconds") == NOW.timestamp()


def test_the_loss_of_the_database_is_logged_once_and_its_return(monkeypatch):
    answers = iter([OperationalError("gone"), OperationalError("gone"), a_snapshot(), a_snapshot()])

    def get():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    said = []
    monkeypatch.setattr(cluster.log, "warning", lambda event, **_: said.append(event), raising=False)
    monkeypatch.setattr(cluster.log, "info", lambda event, **_: said.append(event), raising=False)
    collector = SnapshotCollector(get)
    for _ in range(4):
        list(collector.collect())
    assert said == ["metrics.no_snapshot", "metrics.snapshot_again"]


def test_registering_the_collector_asks_no_database():
    def never():
        raise AssertionError

    registry = CollectorRegistry(auto_describe=True)
    registry.register(SnapshotCollector(never))


def test_names_follow_the_rules_of_prometheus():
    for metric in CLUSTER:
        assert metric.name.startswith("replsite_")
        assert not metric.name.endswith(("_total", "_count", "_milliseconds", "_ms"))
        assert metric.help


def test_the_least_share_of_jobs_of_one_kind_is_told():
    jobs = JobsView((a_job(1, done=50), a_job(2, done=20), a_job(3, kind="walk", total=None)))
    found = scrape(jobs=jobs)
    assert value(found, "replsite_job_progress_ratio", job="censor") == 0.1
    assert value(found, "replsite_jobs", status="running") == 3
    assert value(found, "replsite_jobs", status="waiting") == 0
    assert not [labels for name, labels in found if name == "replsite_job_progress_ratio" and ("job", "walk") in labels]


def test_scrapes_at_once_share_a_rendering_and_none_is_older_than_its_question():
    made: list[float] = []
    asking: list[float] = []

    def render() -> bytes:
        made.append(time.monotonic())
        if len(made) == 1:
            wait_until(lambda: len(asking) == 50, what="all have asked")
        return b"%d" % len(made)

    shared = SharedRendering(render)
    found: list[tuple[float, int]] = []

    def scrape() -> None:
        asked = time.monotonic()
        asking.append(asked)
        found.append((asked, int(shared.get(asked))))

    threads = [threading.Thread(target=scrape) for _ in range(50)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(made) == 2
    assert all(made[number - 1] >= asked for asked, number in found)
    before = len(made)
    assert int(shared.get(time.monotonic())) == before + 1, "a scrape alone gets a page of its own"
