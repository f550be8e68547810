"""``manage.py follow … --record``: a foreign server over TCP, HTTP and Redis, kept exactly once over crashes and gaps."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from replsite.live_rows.reading import read_snapshot
from replsite.status.words import Severity
from streams.catalog.models import CacheInvalidation
from streams.models import RecordedFact, RecordedGap, RecordedPosition, RecordedServer, StreamPosition
from tests.integration.streams.test_follow_redis import recorded, rows_by_hand
from tests.support.redis_server import RedisServer, redis_server
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import ready_ports
from tests.support.writing import append, ids

pytestmark = pytest.mark.django_db(transaction=True)
FOREIGN = "foreign.example"


@pytest.fixture
def foreign(start_manage):
    """Our own server under another name; what it sends is foreign to a site that is called localhost."""

    def start() -> subprocess.Popen[str]:
        process = start_manage(
            "serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", env={"REPLSITE_SERVER_NAME": FOREIGN}
        )
        process.ports = ready_ports(process)
        return process

    return start


@pytest.fixture
def record(start_manage):
    def start(address: str, *more: str, name: str = "main") -> subprocess.Popen[str]:
        known = RecordedServer.objects.filter(name=name).values_list("process_id", flat=True).first()
        process = start_manage(
            "follow", address, "--server-name", FOREIGN, "--record", name, "--json", *more, stdout=subprocess.DEVNULL
        )
        wait_until(
            lambda: (
                process.poll() is not None
                or RecordedServer.objects.filter(name=name).exclude(process_id=known).exists()
            ),
            what="the recorder began",
        )
        return process

    return start


def at(server: subprocess.Popen[str]) -> str:
    return f"tcp://127.0.0.1:{server.ports['replication']}"


def kept(stream: str = "caches") -> list[int]:
    return list(RecordedFact.objects.filter(stream=stream).order_by("id").values_list("token", flat=True))


def positioned(stream: str = "caches") -> None:
    wait_until(lambda: RecordedPosition.objects.filter(stream=stream).exists(), what="the first position is recorded")


def reaches(token: int, stream: str = "caches") -> None:
    def there() -> bool:
        return RecordedPosition.objects.filter(stream=stream, is_current=True, position__gte=token).exists()

    wait_until(there, what=f"{token} is recorded")


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_rows_and_positions_of_a_foreign_server_are_kept(foreign, record):
    server = foreign()
    record(at(server))
    positioned()
    last = append(5)[-1]
    reaches(last)
    assert kept() == ids()
    fact = RecordedFact.objects.first()
    assert json.loads(fact.row)[0] == CacheInvalidation.objects.order_by("-stream_id").first().cache_name
    assert RecordedPosition.objects.filter(stream="events").exists()
    assert RecordedServer.objects.get().server_name == FOREIGN


def test_only_the_wanted_streams_are_kept(foreign, record):
    record(at(foreign()), "--streams", "caches")
    positioned()
    assert set(RecordedPosition.objects.values_list("stream", flat=True)) == {"caches"}


def test_over_kill_nine_every_row_is_there_exactly_once(foreign, record):
    """With catch-up over HTTP nothing is missed while nobody records."""
    server = foreign()
    http = ["--catch-up", "http", "--catch-up-url", f"http://127.0.0.1:{server.ports['http']}", "--streams", "caches"]
    process = record(at(server), *http)
    positioned()
    first = append()[0]
    for _ in range(3):
        reaches(append(50)[-1])
        append(20)
        kill(process)
        append(30)
        process = record(at(server), *http)
    reaches(append()[-1])
    assert kept() == [token for token in ids() if token >= first]
    assert not RecordedGap.objects.exists()


def test_without_catch_up_a_gap_is_recorded_and_recording_goes_on(foreign, record):
    server = foreign()
    process = record(at(server), "--streams", "caches")
    positioned()
    before = append(3)[-1]
    reaches(before)
    process.terminate()
    assert process.wait(DEADLINE_SECONDS) == 0
    missed = append(4)
    record(at(server), "--streams", "caches")
    wait_until(RecordedGap.objects.exists)
    last = append()[0]
    reaches(last)
    gap = RecordedGap.objects.get()
    assert (gap.after, gap.upto) == (before, missed[-1])
    assert kept() == [token for token in ids() if token not in missed]


def test_what_http_refuses_is_a_gap_with_the_reason(foreign, record):
    from tests.support.scripted_http import scripted_http

    server = foreign()
    with scripted_http((400, b'{"errcode":"M_UNKNOWN","error":"Unknown stream"}')) as refusing:
        http = ["--catch-up", "http", "--catch-up-url", refusing.url, "--streams", "caches"]
        process = record(at(server), *http)
        positioned()
        reaches(append()[0])
        kill(process)
        append(3)
        record(at(server), *http)
        reaches(append()[0])
    assert "Unknown stream" in RecordedGap.objects.get().reason


def test_a_second_recorder_of_the_name_is_refused(foreign, record, run_manage):
    server = foreign()
    record(at(server))
    positioned()
    done = run_manage("follow", at(server), "--server-name", FOREIGN, "--record", "main", "--timeout", "20")
    assert done.returncode == 1
    assert "recorded by process" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--record", "a/b"], "letters"),
        (["--record", "a", "--catch-up", "table"], "--catch-up http or none"),
        (["--record", "a", "--view", "linear"], "--view writer"),
    ],
)
def test_arguments_that_cannot_be(run_manage, options, told):
    done = run_manage("follow", "tcp://127.0.0.1:1", *options)
    assert done.returncode == 2
    assert told in done.stderr


# --- Redis --------------------------------------------------------------------------------------------------------


@pytest.fixture
def redis(tmp_path, free_port) -> Iterator[RedisServer]:
    with redis_server(tmp_path, free_port) as server:
        yield server


def test_what_a_current_synapse_published_is_kept_right(redis, record, start_manage):
    messages = recorded()
    start_manage("follow", f"{redis.url}?channel=new.example", "--record", "new", stdout=subprocess.DEVNULL)
    wait_until(lambda: redis.listeners("new.example") == 1, what="the recorder subscribed")
    redis.publish("new.example", *(message for channel, message in messages[1:] if channel == "new.example"))
    wanted = rows_by_hand(messages)
    wait_until(lambda: RecordedFact.objects.count() == sum(map(len, wanted.values())), what="all rows")
    for stream, rows in wanted.items():
        facts = RecordedFact.objects.filter(stream=stream).order_by("id").values_list("writer", "token", "row")
        assert [(writer, token, json.loads(row)) for writer, token, row in facts] == rows
    persister = RecordedPosition.objects.get(stream="events", writer="persister1")
    assert persister.position == max(token for _, token, _ in wanted["events"])
    assert not RecordedGap.objects.exists()
    assert not StreamPosition.objects.filter(instance_name="persister1").exists()


def test_a_stream_in_memory_that_begins_anew_while_nobody_records(redis, start_manage):
    def start() -> subprocess.Popen[str]:
        process = start_manage("follow", f"{redis.url}?channel=c", "--record", "new", stdout=subprocess.DEVNULL)
        wait_until(lambda: redis.listeners("c") == 1)
        return process

    process = start()
    redis.publish("c", "POSITION typing master 5 5", "RDATA typing master 6 [6]")
    wait_until(lambda: kept("typing") == [6])
    kill(process)
    wait_until(lambda: redis.listeners("c") == 0)
    start()
    redis.publish("c", "POSITION typing master 0 0", "RDATA typing master 1 [1]", "RDATA typing master 6 [66]")
    wait_until(lambda: len(kept("typing")) == 3)
    facts = RecordedFact.objects.order_by("id").values_list("writer", "token", "row")
    assert list(facts) == [("master", 6, "[6]"), ("master~2", 1, "[1]"), ("master~2", 6, "[66]")]


def test_a_recorder_that_an_error_ended_is_a_trouble(foreign, start_manage):
    """It was a note, as if somebody had ended it."""
    server = foreign()
    with Path("/dev/full").open("w") as full:
        process = start_manage(
            "follow", at(server), "--server-name", FOREIGN, "--record", "main", "--streams", "caches", stdout=full
        )
        positioned()
        append()
        assert process.wait(DEADLINE_SECONDS) == 1

    def is_warned() -> bool:
        return read_snapshot().stream("main/caches").status.severity is Severity.WARNING

    wait_until(is_warned, what="three periods have passed without a sign of life")
    assert "--record main" in read_snapshot().stream("main/caches").status.command
