"""Metrics of several real processes: one truth for the cluster from any of them, sums or a port each for what they count."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import urllib.request
from itertools import product

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import end_processes
from tests.support.ports import free_ports
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import WireClient, ready_ports

#: Files of counts belong to the process that opened them, so none is forked.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.cold_start]
REQUESTS = "django_http_requests_before_middlewares_total"
#: What every process tells as of its own moment.
OF_THE_MOMENT = (
    "replsite_snapshot_duration_seconds",
    "replsite_snapshot_timestamp_seconds",
    "replsite_reader_lag_seconds",
)


def scrape(address, path="/metrics"):
    """{(name, labels): value}, and it is what Prometheus can read."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=DEADLINE_SECONDS) as answer:
        text = answer.read().decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    found = {(s.name, *sorted(s.labels.items())): s.value for s in samples if not s.name.endswith("_created")}
    assert len(found) == len([s for s in samples if not s.name.endswith("_created")]), "a series is told twice"
    return found


def cluster(found):
    """What has to be the same whoever is asked."""
    kinds = (
        "replsite_stream_",
        "replsite_reader_",
        "replsite_writer_",
        "replsite_replication_",
        "replsite_state_groups ",
    )
    return {key: value for key, value in found.items() if key[0].startswith(kinds) and key[0] not in OF_THE_MOMENT}


@pytest.fixture
def serve(start_manage):
    """``serve(**env)``: a site, and its addresses."""

    def start(**env):
        process = start_manage(
            "serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", env=env, stderr=subprocess.DEVNULL
        )
        process.ports = ready_ports(process)
        process.http = f"127.0.0.1:{process.ports['http']}"
        return process

    return start


def append(start_manage, number=10):
    done = start_manage("append", "caches", "--count", str(number), "--instance", "loud", stderr=subprocess.DEVNULL)
    assert done.wait(DEADLINE_SECONDS) == 0


def get(site, times):
    for _ in range(times):
        with urllib.request.urlopen(f"http://{site.http}/health/live", timeout=DEADLINE_SECONDS) as answer:
            assert answer.status == 200


# --- the cluster ----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario
def test_any_process_tells_the_same_of_the_cluster_and_counters_do_not_jump(serve, start_manage):
    one, other = serve(), serve()
    with WireClient(one.ports["replication"], "NAME worker1\nREPLICATE") as worker:
        worker.read_until("POSITION")
        append(start_manage)
        worker.read_until("RDATA caches")
    ended = ("replsite_replication_closed_total", ("reason", "peer closed"))
    sent = ("replsite_stream_updates_sent_total", ("stream", "caches"))
    wait_until(lambda: scrape(other.http).get(ended) == 1 and scrape(other.http).get(sent) == 10)
    wait_until(lambda: cluster(scrape(one.http)) == cluster(scrape(other.http)))
    found = scrape(other.http)
    assert found["replsite_replication_commands_received_total", ("command", "REPLICATE"), ("name", "worker1")] == 1
    assert found["replsite_replication_commands_sent_total", ("command", "RDATA"), ("name", "worker1")] == 10
    theirs = "synapse_replication_tcp_protocol_outbound_commands_total"
    assert found[theirs, ("command", "RDATA"), ("name", "worker1"), ("server_name", "localhost")] == 10
    totals = [scrape(site.http) for site in (one, other) * 5]
    for key in [
        key for key in found if key[0].startswith(("replsite_stream", "replsite_replication")) and "_total" in key[0]
    ]:
        series = [seen[key] for seen in totals]
        assert series == sorted(series), key


# --- a port for each process ----------------------------------------------------------------------------------------------


def test_with_ports_each_process_shows_its_own_and_the_site_the_cluster_alone(serve):
    first, second = sorted(free_ports(2))
    env = {"REPLSITE_METRICS_PORTS": str(first)}
    one = serve(**env)
    other = serve(REPLSITE_METRICS_PORTS=str(second))
    get(one, 7)
    get(other, 3)
    assert not [key for key in scrape(one.http) if key[0].startswith("django_")]
    before = scrape(f"127.0.0.1:{first}")[REQUESTS,], scrape(f"127.0.0.1:{second}")[REQUESTS,]
    get(one, 5)
    after = scrape(f"127.0.0.1:{first}")[REQUESTS,], scrape(f"127.0.0.1:{second}")[REQUESTS,]
    assert (after[0] - before[0], after[1] - before[1]) == (5, 0)
    assert cluster(scrape(one.http)).keys() == cluster(scrape(other.http)).keys()


@pytest.mark.scenario
def test_processes_take_the_ports_of_a_range_one_after_another_and_go_on_without_one(serve, start_manage):
    port = free_ports(1)[0]
    one, other = serve(REPLSITE_METRICS_PORTS=str(port)), serve(REPLSITE_METRICS_PORTS=str(port))
    get(one, 4)
    assert scrape(f"127.0.0.1:{port}")[REQUESTS,] >= 4
    assert scrape(other.http)["replsite_snapshot_up",] == 1
    append = start_manage(
        "append", "caches", "--count", "1", env={"REPLSITE_METRICS_PORTS": str(port)}, stderr=subprocess.PIPE
    )
    _, said = append.communicate(timeout=DEADLINE_SECONDS)
    assert (append.returncode, "metrics." in said) == (0, False), "what does one thing and is gone asks for no port"


# --- files ----------------------------------------------------------------------------------------------------------------


def test_with_files_any_process_shows_the_sums_and_they_never_fall(serve, start_manage, tmp_path):
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    one, other = serve(**env), serve(**env)
    get(one, 7)
    get(other, 3)
    wait_until(lambda: scrape(other.http)[REQUESTS,] >= 10)
    seen = [scrape(site.http)[REQUESTS,] for site in (one, other) * 4]
    assert seen == sorted(seen)
    end_processes([other])
    assert scrape(one.http)[REQUESTS,] >= seen[-1], "what a process counted stays when it ends"


WORKER = """
import os, sys, time
import django
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
django.setup()
from events.persist import counters as measures
from replsite.metrics import process as process_metrics
from streams.waiting import wait as waiting
number = int(sys.argv[1])
measures.HOPS.observe(number)
measures.GROUPS.labels("delta").inc(number)
waiting.timed_out["events"] += number
if sys.argv[2] == "fork" and os.fork() == 0:
    waiting.timed_out["events"] += 100
    process_metrics._FIGURES.flush()
    waiting.timed_out["events"] += 1000
    process_metrics._FIGURES.flush()
    os._exit(0)
"""


@pytest.mark.scenario
@pytest.mark.parametrize(("way", "waits"), [("plain", 5.0), ("fork", None)])
def test_counts_of_commands_and_of_children_are_in_the_sums(serve, database_url, tmp_path, way, waits):
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "DATABASE_URL": database_url}
    for number in (2, 3):
        subprocess.run(
            [sys.executable, "-c", WORKER, str(number), way],
            env={**os.environ, **env},
            cwd=PROJECT,
            check=True,
            timeout=DEADLINE_SECONDS,
        )
    site = serve(**env)
    found = scrape(site.http)
    assert found["replsite_state_groups_written_total", ("kind", "delta")] == 5
    assert found["replsite_state_chain_hops_count",] == 2
    assert found["replsite_state_chain_hops_bucket", ("le", "2.0")] == 1
    timeouts = found["replsite_wait_timeouts_total", ("stream", "events")]
    assert timeouts == waits if waits else timeouts == 5 + 2 * 1_000, (
        "a child tells what it counts after its first look"
    )
    theirs = "synapse_notifier_wait_for_stream_token_timeouts_total"
    assert found[theirs, ("server_name", "localhost"), ("stream_key", "events")] == timeouts


def test_gauges_of_processes_that_are_gone_are_dropped(serve, tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    gone = tmp_path / f"gauge_livesum_{process.stdout.strip()}.db"
    site = serve(PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    some = next(path for path in tmp_path.glob("*.db"))
    gone.write_bytes(some.read_bytes())
    scrape(site.http)
    assert not gone.exists()
    assert re.search(r"_\d+$", some.stem)


def test_a_probe_may_ask_with_head(serve):
    site = serve()
    connection = http.client.HTTPConnection(site.http, timeout=DEADLINE_SECONDS)
    for method, path in product(("HEAD", "GET", "HEAD"), ("/health", "/health/live", "/health/ready")):
        connection.request(method, path)
        answer = connection.getresponse()
        assert (answer.status, answer.read() == b"") == (200, method == "HEAD")
    connection.close()
