"""``manage.py pipeline run``: statistics are exact, whatever is killed and whoever joins."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import uuid

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from events.models import Event
from events.sending.send import create_room
from pipeline.conf import pipeline_settings
from pipeline.errors import QueryRunning
from pipeline.live.process import LiveOptions, _only_one, run
from pipeline.live.query import LiveQuery, Place
from pipeline.live.statistics_table import StatisticsTable
from pipeline.models import BatchLedger, RoomStatistics
from pipeline.source.data_source import register
from replsite.live_rows.reading import read_snapshot
from streams import registry
from streams.db.driver import dsn
from streams.models import Reader, StoredCursor
from streams.writing.name import written_by
from tests.support.silent_queries import assert_told_everywhere, silent
from tests.support.syncing import talk
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.writing import store_positions

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.spark]


@pytest.fixture
def start_pipeline(start_manage):
    """Start the pipeline and wait until it works; its checkpoints are removed after the test."""

    def start():
        process = start_manage("pipeline", "run", stderr=subprocess.DEVNULL)
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
    return dict(RoomStatistics.objects.values_list("room_id", "events"))


class Load:
    """Appends to several rooms in a thread until it is told to stop, as one writer name after another."""

    def __init__(self):
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.work)

    def work(self):
        number = 0
        while not self.ended.wait(0.1):
            with written_by(f"load-{number // 10}"):
                registry.get("events").append(*events(f"!room{number % 5}", 3))
            number += 1
        connections.close_all()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


@pytest.mark.scenario
def test_counts_are_exact_over_a_kill_and_an_end_while_writers_join(start_pipeline, wait_until, rows):
    with Load():
        process = start_pipeline()
        wait_until(counted, 2 * DEADLINE_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process = start_pipeline()
    wait_until(lambda: counted() == expected(rows), 2 * DEADLINE_SECONDS)
    process.terminate()
    last = json.loads(process.communicate(timeout=2 * DEADLINE_SECONDS)[0].splitlines()[-1])
    assert process.returncode == 0 and counted() == expected(rows)
    reached = BatchLedger.objects.get(query="statistics").offsets
    reader = Reader.objects.get(name="pipeline statistics")
    assert last["positions"]["statistics"] == reader.positions == reached and reader.closed_at is not None
    assert len([name for name in reached["events"] if name.startswith("load-")]) >= 2


@pytest.mark.scenario
def test_one_that_was_killed_is_told_until_it_goes_on(start_pipeline, wait_until, admin_client, rows):
    registry.get("events").append(*events("!r", 20))
    process = start_pipeline()
    wait_until(lambda: counted() == {"!r": 20}, 2 * DEADLINE_SECONDS)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    registry.get("events").append(*events("!r", 300))
    store_positions()
    rows("UPDATE events_event SET received_at = received_at - interval '2 hours' RETURNING 1")
    found = silent("pipeline statistics")
    assert (found.lag_facts, found.runs, found.status.word) == (300, False, "left behind")
    assert "manage.py pipeline run" in found.status.sentence
    assert_told_everywhere("pipeline statistics", admin_client)
    process = start_pipeline()
    wait_until(lambda: counted() == expected(rows) == {"!r": 320}, 2 * DEADLINE_SECONDS)
    wait_until(lambda: not any("pipeline" in problem.subject for problem in read_snapshot().health.problems))
    process.terminate()
    assert process.wait(2 * DEADLINE_SECONDS) == 0


def test_it_ends_by_itself_when_nothing_is_left(spark, rows):
    registry.get("events").append(*events("!r", 20))
    reached = run(LiveOptions(until_idle_seconds=0.3), lambda: False, lambda: None)
    assert counted() == expected(rows) == {"!r": 20}
    assert set(reached) == {"statistics"}
    assert StoredCursor.objects.get(stream="events").base == max(reached["statistics"]["events"].values())
    assert Reader.objects.get(name="pipeline statistics").closed_at


@pytest.fixture
def kept(spark, tmp_path):
    """``kept(table)``: bring a table up to date with a query in this process."""
    register(spark)

    def keep(table, checkpoints="checkpoints"):
        query = LiveQuery(table, Place(dsn(), "default", tmp_path / checkpoints)).start(spark, {"availableNow": True})
        query.awaitTermination(60)

    return keep


def test_what_comes_in_is_summed_by_room(kept):
    room = create_room("@ann:site")
    room.join("@bob:else")
    talk(room, 3)
    store_positions()
    kept(StatisticsTable("default"))
    found = RoomStatistics.objects.get()
    stored = Event.objects.filter(stream_ordering__gt=0)
    assert (found.events, found.messages) == (stored.count(), 3)
    assert found.state_events == stored.filter(state_key__isnull=False).count()
    assert found.last_position == stored.latest("stream_ordering").stream_ordering


def test_rejected_events_and_history_are_counted_apart(kept):
    rejected = events("!r", 2)
    for event in rejected:
        event.rejected_reason = "not allowed"
    registry.get("events").append(*rejected, *events("!r", 1))
    registry.get("backfill").append(*events("!r", 4))
    store_positions()
    kept(StatisticsTable("default"))
    found = RoomStatistics.objects.get()
    assert (found.events, found.rejected, found.messages, found.history) == (3, 2, 3, 4)


def test_every_start_goes_on_where_the_tables_are(kept, rows):
    for checkpoints in ("first", "second", "first"):
        registry.get("events").append(*events("!r", 20))
        registry.get("backfill").append(*events("!r", 5))
        store_positions()
        kept(StatisticsTable("default"), checkpoints)
    assert counted() == expected(rows) == {"!r": 60}
    assert RoomStatistics.objects.get().history == 15


def test_a_second_process_is_refused_with_the_first_one_named(spark):
    Reader.objects.create(key="spark:x", name="pipeline statistics", kind="spark", address="here", process_id=4242)
    with _only_one("default", "pipeline statistics"), pytest.raises(QueryRunning, match="process 4242 on here"):
        run(LiveOptions(), lambda: False, lambda: None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--until-idle", "nan"], "a number of seconds"),
        (["--until-idle", "-1"], "a number of seconds"),
    ],
)
def test_unusable_arguments_are_told_before_anything_begins(arguments, said):
    with pytest.raises(CommandError, match=said) as refused:
        call_command("pipeline", "run", *arguments)
    assert refused.value.returncode == 2
