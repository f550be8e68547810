"""Recorded foreign servers in the snapshot, on the page, in the command, in the admin and in metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from replsite.live_rows.reading import read_snapshot
from replsite.status.words import Severity
from streams.models import RecordedPosition, RecordedServer
from streams.replication.common.reader_rows import ReaderRows
from streams.replication.protocol.cursors import MissingRange
from streams.replication.protocol.ordering import FollowedRow
from streams.replication.recording.recorder import Batch, Recorder

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def record() -> Iterator[Recorder]:
    recorder = Recorder("main", "foreign.example", "tcp://there:1", "default")
    recorder.open()
    recorder.store(
        Batch(rows=[FollowedRow("events", "persister1", 7, ["ev", []])], positions={"events": {"master": 9}})
    )
    yield recorder
    recorder.close()


def test_its_writers_stand_beside_ours(record):
    stream = read_snapshot().stream("main/events")
    assert {writer.writer: writer.position for writer in stream.writers} == {"persister1": 7, "master": 9}
    assert (stream.status.word, stream.last_fact_at is not None) == ("recorded", True)
    assert read_snapshot().stream("events").recorded_from == ""


def test_a_reader_of_a_record_is_behind_by_its_positions(record):
    rows = ReaderRows("follower", "tcp://there:1", "default")
    about = {
        "key": "follower m",
        "name": "m",
        "address": "here:1",
        "positions": {"main/events": {"persister1": 7, "master": 4}},
    }
    rows.write([about])
    (reader,) = read_snapshot().readers
    assert (reader.lag_facts, reader.streams[0].lag_exact) == (5, False)
    rows.write([{**about, "positions": {"main/events": {"persister1": 7, "master": 9}}}])
    (reader,) = read_snapshot().readers
    assert reader.lag_facts == 0
    rows.close()


def test_what_was_missed_is_shown(record):
    record.store(Batch(gaps=[(MissingRange("events", "master", 9, 12), "gone")], positions={"events": {"master": 12}}))
    stream = read_snapshot().stream("main/events")
    assert "1 range of facts missed" in stream.writers[0].status.sentence


def test_a_recorder_that_was_killed_before_its_first_position_wants_a_look():
    recorder = Recorder("other", "foreign.example", "tcp://there:1", "default")
    recorder.open()
    stream = read_snapshot().stream("other")
    assert (stream.status.word, stream.status.severity) == ("recorded", Severity.FINE)
    recorder.close(in_order=False)
    RecordedServer.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    snapshot = read_snapshot()
    assert snapshot.stream("other").status.word == "recording stopped"
    assert [problem.subject for problem in snapshot.health.problems] == ["Writer recorder of other"]
    assert "foreign.example" not in Client().get("/metrics").content.decode()


@pytest.mark.parametrize("sign", ["-", "+"], ids=["long ago", "ahead, since the clock was set back"])
def test_a_recorder_that_went_silent_wants_a_look(record, sign):
    def heard(apart: str) -> None:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE streams_recordedserver SET heartbeat_at = clock_timestamp() {sign} interval '{apart}'"
            )

    for apart in ("1 minute", "40 days"):  # it is to run, so it is never left out
        heard(apart)
        snapshot = read_snapshot()
        assert snapshot.stream("main/events").status.word == "recording stopped"
        assert any("main/events" in problem.subject for problem in snapshot.health.problems)
    status = 'status="recording stopped",stream="main/events",writer="master"} 1.0'
    assert status in Client().get("/metrics").content.decode()


def test_a_recorder_that_was_ended_is_left_out_after_a_day(record):
    record.close()
    assert read_snapshot().stream("main/events").status.severity is Severity.NOTE
    RecordedServer.objects.update(ended_at=timezone.now() - timedelta(days=2))
    assert "main/events" not in [stream.name for stream in read_snapshot().streams]


def test_a_record_that_nobody_wants_is_forgotten_and_goes_on_where_it_ended(record, run_manage):
    refused = run_manage("streams", "forget", "main", "--yes")
    assert refused.returncode == 1 and "'main' is recorded by a process" in refused.stderr
    record.close(in_order=False)
    RecordedServer.objects.update(heartbeat_at=timezone.now() - timedelta(days=2))
    problem = next(one for one in read_snapshot().health.problems if "main/events" in one.subject)
    assert "If it is not wanted any more: manage.py streams forget main" in problem.verdict.sentence
    done = run_manage("streams", "forget", "main", "--yes")
    assert done.returncode == 0 and "main is forgotten" in done.stdout
    assert not [stream for stream in read_snapshot().streams if stream.recorded_from]
    assert not [one for one in read_snapshot().health.problems if "main/" in one.subject]
    assert run_manage("streams", "forget", "nobody", "--yes").returncode == 2
    again = Recorder("main", "foreign.example", "tcp://there:1", "default")
    assert again.open() == {"events": {"persister1": 7, "master": 9}}
    again.close()


def test_the_command_and_metrics_tell_of_it(record, run_manage):
    told = json.loads(run_manage("streams", "--json", "--now").stdout)
    assert "main/events" in [stream["name"] for stream in told["streams"]]
    assert (
        'replsite_stream_position{stream="main/events",writer="persister1"} 7.0'
        in Client().get("/metrics").content.decode()
    )


def test_the_admin_shows_all_four_tables(record):
    record.store(Batch(gaps=[(MissingRange("events", "master", 9, 12), "gone")]))
    get_user_model().objects.create_superuser("root", password="pass")
    client = Client()
    client.login(username="root", password="pass")
    for table in ("recordedserver", "recordedposition", "recordedfact", "recordedgap"):
        response = client.get(f"/admin/streams/{table}/")
        assert response.status_code == 200, table
        assert "main" in response.content.decode()
    assert RecordedPosition.objects.count() == 2
