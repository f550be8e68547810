"""Status words of recorded foreign servers, and their views."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from replsite.live_rows.reading import recorded_streams
from replsite.live_rows.recorded import RecordedRow
from replsite.live_rows.verdicts import Limits, recording_verdict
from replsite.metrics.cluster import families
from replsite.status.words import Severity
from tests.support.snapshots import NOW, a_snapshot, ago

ROW = RecordedRow(
    record="main",
    server_name="foreign.example",
    address="tcp://there:9092",
    command="",
    host="here",
    process_id=12,
    heartbeat_at=NOW,
    ended_at=None,
    stream="events",
    writer="master",
    position=30,
    last_fact_position=29,
    last_fact_at=NOW - timedelta(seconds=5),
    last_advance_at=NOW,
    rows_recorded=7,
    ranges_missed=0,
)


@pytest.mark.parametrize(
    ("changes", "word", "severity"),
    [
        ({}, "recorded", Severity.FINE),
        ({"ranges_missed": 2}, "recorded", Severity.NOTE),
        ({"heartbeat_at": ago(2.9)}, "recorded", Severity.FINE),
        ({"heartbeat_at": ago(3.1)}, "recording stopped", Severity.WARNING),
        ({"heartbeat_at": ago(99), "ended_at": NOW}, "recording stopped", Severity.NOTE),
    ],
)
def test_words_of_a_recorded_writer(changes, word, severity):
    verdict = recording_verdict(replace(ROW, **changes), Limits(), NOW)
    assert (verdict.word, verdict.severity) == (word, severity)


def test_what_was_missed_and_how_to_go_on_are_told():
    verdict = recording_verdict(replace(ROW, ranges_missed=2, heartbeat_at=ago(99)), Limits(), NOW)
    assert "2 ranges of facts missed" in verdict.sentence
    assert "process 12 on here" in verdict.sentence
    assert "manage.py follow tcp://there:9092 --record main" in verdict.sentence
    mirrored = replace(ROW, command="mirror postgresql://r@db/synapse tcp://there:9092", ended_at=NOW)
    assert (
        recording_verdict(mirrored, Limits(), NOW).command
        == "manage.py mirror postgresql://r@db/synapse tcp://there:9092"
    )


def test_streams_carry_the_name_of_the_record():
    slow = replace(ROW, writer="worker", position=20, last_fact_at=None)
    (stream,) = recorded_streams([ROW, slow], NOW, Limits())
    assert (stream.name, stream.head, stream.linear_position) == ("main/events", 30, 20)
    assert stream.recorded_from == "foreign.example"
    assert stream.last_fact_at == ROW.last_fact_at
    assert {writer.state for writer in stream.writers} == {"recorded"}


def test_the_worst_writer_stands_first():
    missed = replace(ROW, writer="worker", ranges_missed=1)
    (stream,) = recorded_streams([ROW, missed], NOW, Limits())
    assert stream.writers[0].writer == "worker"
    assert stream.status.severity is Severity.NOTE


def test_metrics_of_recorded_writers_stand_beside_ours():
    (stream,) = recorded_streams([ROW], NOW, Limits())
    page = list(families(a_snapshot(streams=(stream,), readers=()), synapse_names=True, server_name="ours.example"))
    samples = {(s.name, *s.labels.values()): s.value for family in page for s in family.samples}
    assert samples["replsite_stream_position", "main/events", "master"] == 30
    assert samples["replsite_writer_status", "main/events", "master", "recorded"] == 1
    assert samples["synapse_storage_stream_current_position", "events", "foreign.example"] == 30
    assert not [key for key in samples if key[0] == "synapse_event_persisted_position"]
    assert not [key for key in samples if key[0] == "replsite_stream_open_appends"]
