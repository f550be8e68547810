"""Histories with gaps: where these are is marked as the live path marks it."""

from __future__ import annotations

import pytest

from tests.pipeline.imports import bare_room, run_import, write_lines

pytestmark = pytest.mark.django_db

_MARKED = """
SELECT g.room_id, e.event_id, g.instance_name = e.instance_name FROM events_timelinegap g
JOIN events_event e USING (stream_ordering) ORDER BY 1, 2
"""


@pytest.fixture(scope="module")
def imported(spark, module_database, tmp_path_factory):
    """Three rooms: whole, without events 3 and 6, and one without 3 where a second event stands above the same gap."""
    whole, gapped, twice = bare_room(1, 5), bare_room(2, 8), bare_room(3, 5)
    fork = {**twice[3], "event_id": "$fork-3:example.org", "origin_server_ts": 1_700_000_000_999}
    lines = [*whole, *(gapped[n] for n in (0, 1, 3, 4, 6, 7)), twice[0], twice[1], twice[3], fork, twice[4]]
    path = write_lines(tmp_path_factory.mktemp("gaps") / "events.jsonl", *lines)
    return run_import(path)


def test_gaps_are_marked_at_the_first_event_above_them(imported, rows):
    assert imported.summary()["imported"] == 16
    assert rows(_MARKED) == [
        ("!made2:example.org", "$e4-2:example.org", True),
        ("!made2:example.org", "$e7-2:example.org", True),
        ("!made3:example.org", "$e4-3:example.org", True),
    ]


def test_a_history_without_holes_has_no_marks(imported, rows):
    assert rows("SELECT room_id FROM events_timelinegap WHERE room_id = '!made1:example.org'") == []
