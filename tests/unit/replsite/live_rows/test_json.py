"""Snapshots as plain data."""

from __future__ import annotations

import json

import pytest

from replsite.live_rows.cells import as_json
from replsite.status.words import Health, HealthWord, Problem
from tests.support.snapshots import STUCK, a_reader, a_snapshot, a_stream, a_writer, ago


def test_json_says_times_in_iso_and_severity_in_a_word():
    health = Health(HealthWord.WRONG, "x", (Problem("Reader r", STUCK),))
    plain = json.loads(json.dumps(as_json(a_snapshot(a_stream(a_writer()), a_reader(), health=health))))
    assert plain["streams"][0]["writers"][0]["last_write_at"] == ago(5).isoformat()
    assert plain["health"]["problems"][0]["verdict"] == {
        "word": "stuck",
        "severity": "wrong",
        "sentence": "Restart it.",
        "command": "",
        "actions": [],
    }
    assert plain["readers"][0]["streams"][0]["positions"] == {"master": 10}


def test_a_stream_is_found_by_its_name():
    snapshot = a_snapshot(a_stream(name="a"), a_stream(name="b"))
    assert snapshot.stream("b").name == "b"
    with pytest.raises(KeyError):
        snapshot.stream("c")
