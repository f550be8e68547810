"""Hosts whose clocks are an hour off: nobody looks gone, blocked or late because of it, and nobody makes others look so."""

from __future__ import annotations

import json
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

import streams.jobs.admin
from pipeline.models import Job, JobState
from replsite.live_rows.reading import read_snapshot
from replsite.status.words import Severity
from streams.catalog.models import CacheInvalidation
from streams.db.clock import database_now
from streams.jobs import view
from streams.models import Reader
from tests.conftest import end_processes
from tests.deployment.followed import Followed
from tests.support.effects import TABLE, effects_table
from tests.support.session import PROJECT
from tests.support.waiting import wait_until
from tests.support.wire_client import ready_ports
from tests.support.writing import linear

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = 3600
#: A writer that opens a transaction, says so, and commits it when it is told to.
_WRITER = """
import sys, time
from django.db import transaction
from streams import registry
from streams.writing.name import use_instance
from streams.catalog.models import CacheInvalidation
use_instance(NAME)
with transaction.atomic():
    registry.get("caches").append(CacheInvalidation(cache_name="c", keys=None))
    print("open", time.time(), flush=True)
    sys.stdin.readline()
print("committed", flush=True)
"""


def skewed(seconds: int) -> dict[str, str]:
    """The environment of a host whose clock is that far ahead."""
    return {"PYTHONPATH": str(Path(PROJECT) / "tests" / "skewed_clock"), "SKEW_SECONDS": str(seconds)}


@pytest.fixture
def writers(start_manage):
    """One an hour ahead and one an hour behind, each with a transaction open."""
    found = {}
    for name, seconds in (("ahead", HOUR), ("behind", -HOUR)):
        code = f"NAME = {name!r}\n{_WRITER}"
        found[name] = start_manage("shell", "-v", "0", "-c", code, env=skewed(seconds), stdin=subprocess.PIPE)
    for name, seconds in (("ahead", HOUR), ("behind", -HOUR)):
        word, clock = found[name].stdout.readline().split()
        assert word == "open"
        assert abs(float(clock) - time.time() - seconds) < 300, "its clock is an hour off"
    return found


def effects() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT token FROM {TABLE} WHERE reader = 'r' ORDER BY number")
        return [row[0] for row in cursor.fetchall()]


def go_on(process) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def test_an_open_append_is_as_old_as_it_is(writers):
    caches = read_snapshot().stream("caches")
    assert len(caches.holders) == 2
    for holder in caches.holders:
        assert timedelta() <= database_now("default") - holder.since < timedelta(minutes=5)
        assert 0 <= holder.seconds < 300
    for process in writers.values():
        go_on(process)
        assert process.stdout.readline() == "committed\n"
    linear()
    caches = read_snapshot().stream("caches")
    assert {writer.writer: writer.status.word for writer in caches.writers} == {"ahead": "writing", "behind": "writing"}
    assert caches.holders == ()


def test_a_server_and_a_follower_on_wrong_clocks_look_well_everywhere(start_manage, run_manage):
    run_manage("append", "caches", "--count", "1", env=skewed(HOUR))
    server = start_manage("runreplication", "--bind", "127.0.0.1:0", env=skewed(HOUR))
    port = ready_ports(server)["replication"]
    start_manage("follow", f"tcp://127.0.0.1:{port}", "--name", "behind", env=skewed(-HOUR), stdout=subprocess.DEVNULL)
    wait_until(lambda: set(Reader.objects.values_list("kind", flat=True)) == {"connection", "follower"})
    wait_until(lambda: all(reader.positions for reader in Reader.objects.all()))
    for reader in read_snapshot().readers:
        assert reader.status.severity == Severity.FINE, reader.status
        assert timedelta(seconds=-1) < database_now("default") - reader.connected_at < timedelta(minutes=5)
        assert reader.lag_seconds < 60
    # and whoever looks may be wrong about the time as well
    told = json.loads(run_manage("streams", "--json", env=skewed(-HOUR)).stdout)
    assert {reader["status"]["word"] for reader in told["readers"]} <= {"current", "idle"}
    (caches,) = [stream for stream in told["streams"] if stream["name"] == "caches"]
    assert {writer["status"]["word"] for writer in caches["writers"]} <= {"writing", "idle", "retired"}


@pytest.mark.speed
def test_clocks_that_jump_while_processes_run(start_manage, run_manage, tmp_path):
    """A writer, a server, a follower and a handler go on; nobody is taken for dead, and nobody spins."""
    jumps = tmp_path / "jumps"
    jumps.write_text("0")
    env = {**skewed(0), "SKEW_FILE": str(jumps)}
    with effects_table():
        append = ("append", "caches", "--count", "100000", "--rate", "20", "--instance", "jumping")
        writer = start_manage(*append, env=env, stdout=subprocess.DEVNULL)
        server = start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", env=env)
        port = ready_ports(server)["replication"]
        follow = ("follow", f"tcp://127.0.0.1:{port}", "--streams", "caches", "--from", "caches=1", "--json")
        follower = start_manage(*follow, env=env)
        followed = Followed(follower)
        handler = start_manage(
            "-m", "tests.support.handler_process", "never", str(tmp_path), "runhandlers", "r", env=env
        )
        processes = [writer, server, follower, handler]
        for seconds in (0, HOUR, -HOUR, 40 * 24 * HOUR, 0):
            jumps.write_text(str(seconds))
            reached = linear()
            wait_until(lambda reached=reached: linear() > reached + 10, what="facts come")
            reached = linear()
            wait_until(lambda reached=reached: followed.tokens[-1:] >= [reached], what="the follower has them")
            wait_until(lambda reached=reached: effects()[-1:] >= [reached], what="the handler has them")
            snapshot = read_snapshot()
            assert max(r.status.severity for r in snapshot.readers) <= Severity.NOTE, [
                r.status for r in snapshot.readers
            ]
            assert {w.status.word for w in snapshot.stream("caches").writers} == {"writing"}
        assert [process.poll() for process in processes] == [None] * 4
        before = [sum(psutil.Process(process.pid).cpu_times()[:2]) for process in processes]
        began = time.monotonic()
        time.sleep(1.5)
        used = [sum(psutil.Process(p.pid).cpu_times()[:2]) - was for p, was in zip(processes, before, strict=True)]
        assert max(used) < 0.8 * (time.monotonic() - began), "a loop that does not wait takes all of a core"
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*), max(at) < clock_timestamp() FROM streams_sample")
            samples, is_past = cursor.fetchone()
        assert samples > 0 and is_past
        end_processes([writer])
        tokens = list(CacheInvalidation.objects.order_by("stream_id").values_list("stream_id", flat=True))
        wait_until(lambda: followed.tokens == tokens and effects() == tokens, what="each once, in order")
        end_processes(processes)


def test_a_job_takes_as_long_as_it_does(monkeypatch, transactional_db):
    began = database_now("default")
    job = Job.objects.create(kind="censor", state=JobState.RUNNING, started_at=began)
    monkeypatch.setattr(view, "database_now", lambda using: began + timedelta(seconds=90))
    assert view.job_view(job.pk, "default").duration_text == "1 min 30 s"
    assert view.job_views(10, "default")[0].duration_text == "1 min 30 s"
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    monkeypatch.setattr(streams.jobs.admin, "database_now", lambda using: began + timedelta(seconds=90))
    assert "1 min 30 s" in client.get(f"/admin/pipeline/job/{job.pk}/change/").content.decode()


def test_the_pages_of_the_past_end_where_the_database_is(monkeypatch, transactional_db):
    """A line of an hour would be out of the picture on a host that is an hour off."""
    from replsite.history import page

    then = database_now("default") - timedelta(days=3, hours=5)
    monkeypatch.setattr(page, "database_now", lambda using: then)
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    assert f"{then:%Y-%m-%dT%H:%M}" in client.get("/admin/history/?stream=caches").content.decode(), (
        "the end of the range"
    )


def test_a_staging_table_is_named_by_the_clock_that_judges_its_age():
    """The host's own clock is not asked: a day off, and the next job would drop what this one has staged."""
    from pipeline.source import write

    assert "time" not in vars(write)
