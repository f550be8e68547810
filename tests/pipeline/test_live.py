"""``manage.py pipeline run``: counts are exact, whatever is killed and whoever joins."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import uuid

import pytest
from django.db import connections

from events.models import Event
from pipeline.conf import pipeline_settings
from pipeline.counts import CountsQuery
from pipeline.models import BatchLedger, RoomCount
from pipeline.source import register
from streams import registry, writers
from streams.database import dsn
from streams.models import Reader
from tests.conftest import end_process

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("own_writer"), pytest.mark.spark]


@pytest.fixture
def start_pipeline(start_manage):
    """Start the pipeline and wait until it works; its checkpoints are removed after the test."""

    def start(*arguments):
        process = start_manage("pipeline", "run", *arguments, stderr=subprocess.DEVNULL)
        assert process.stdout.readline() == "ready pipeline\n"
        return process

    yield start
    shutil.rmtree(pipeline_settings().folder / "checkpoints", ignore_errors=True)


def events(room, count):
    return [
        Event(
            event_id=f"${uuid.uuid4()}",
            room_id=room,
            type="m.room.message",
            sender="@a:b",
            topological_ordering=1,
            origin_server_ts=1,
        )
        for _ in range(count)
    ]


def expected(rows):
    return dict(rows("SELECT room_id, count(*) FROM events_event WHERE stream_ordering > 0 GROUP BY 1"))


def counted():
    return dict(RoomCount.objects.values_list("room_id", "events"))


class Load:
    """Appends to several rooms in a thread until it is told to stop, as one writer name after another."""

    def __init__(self):
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.work)

    def work(self):
        number = 0
        while not self.ended.wait(0.005):
            if number % 100 == 0:
                writers.retire_all()
                writers.use_instance(f"load-{number // 100}")
            registry.get("events").append(*events(f"!room{number % 5}", 3))
            number += 1
        writers.retire_all()
        connections.close_all()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def test_counts_are_exact_over_kills_while_writers_join(start_pipeline, wait_until, rows):
    with Load():
        for _ in range(2):
            process = start_pipeline()
            seen = sum(counted().values())
            wait_until(lambda seen=seen: sum(counted().values()) > seen, 60)
            os.killpg(process.pid, signal.SIGKILL)
    process = start_pipeline("--until-idle", "0.5")
    last = json.loads(process.communicate(timeout=90)[0].splitlines()[-1])
    assert counted() == expected(rows)
    assert last["positions"]["events"] == BatchLedger.objects.get().offsets
    assert len({name for name in last["positions"]["events"] if name.startswith("load-")}) >= 2


def test_a_lost_checkpoint_does_not_count_twice(spark, tmp_path, rows):
    register(spark)
    for run in ("first", "second"):
        registry.get("events").append(*events("!r", 20))
        assert writers.retire_all()
        query = CountsQuery(dsn(), tmp_path / run, "default").start(spark, {"availableNow": True})
        query.awaitTermination(60)
    assert counted() == expected(rows) == {"!r": 40}


def test_sigterm_ends_it_cleanly_and_its_reader_is_closed(start_pipeline, wait_until):
    registry.get("events").append(*events("!r", 3))
    process = start_pipeline()
    wait_until(counted, 60)
    process.terminate()
    assert process.wait(30) == 0
    reader = Reader.objects.get(kind="spark")
    assert reader.closed_at is not None
    assert reader.positions["events"]["master"] == BatchLedger.objects.get().offsets["master"]
    end_process(process)


def test_a_second_process_is_refused_with_the_first_one_named(run_manage):
    from pipeline.live import _only_one

    Reader.objects.create(key="spark:x", name="pipeline room-counts", kind="spark", address="here", process_id=4242)
    with _only_one("default"):
        refused = run_manage("pipeline", "run")
    assert refused.returncode == 1 and "process 4242 on here" in refused.stderr
