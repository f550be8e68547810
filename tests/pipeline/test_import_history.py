"""The shipped rooms, imported: every table against the input and against what a real server answered."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from events.integrity.repair import check_room
from pipeline.models import Job
from streams import registry
from streams.reading.rows import linear_position, rows_between, stored_positions
from tests.pipeline.imports import ALL_ROOMS, run_import, staging_tables
from tests.support.room_data import ROOM_NAMES, ROOMS, stored_events
from tests.support.summaries import assert_right
from tests.support.writing import store_positions

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def imported(spark, module_database):
    return run_import(*ALL_ROOMS)


@pytest.fixture(params=ROOM_NAMES)
def room(request, imported):
    return request.param


def room_id_of(room):
    return stored_events(room)[0]["room_id"]


def test_every_line_is_accounted_for(imported):
    lines = sum(len(stored_events(room)) for room in ROOM_NAMES)
    assert imported.summary() | {"seconds": 0} == {
        "read": lines,
        "imported": lines,
        "duplicates": 0,
        "rejected": 6,
        "quarantined": 0,
        "rooms": len(ROOM_NAMES),
        "seconds": 0,
    }


def test_checking_finds_no_difference(room):
    """States and extremities are those that the rules work out, and so the real server's: ``oracle/test_states``."""
    report = check_room(room_id_of(room))
    assert (report.totals, report.doubts) == ({}, [])


def test_the_list_of_rooms_has_a_right_row_for_each(imported):
    assert_right()


def test_the_order_is_the_given_one(room, rows):
    found = rows("SELECT event_id FROM events_event WHERE room_id = %s ORDER BY stream_ordering", room_id_of(room))
    assert [event_id for (event_id,) in found] == [event["event_id"] for event in stored_events(room)]


def test_the_order_over_all_rooms_is_the_given_one(imported, rows):
    given = sorted(
        (event["stream_ordering"], event["event_id"]) for name in ROOM_NAMES for event in stored_events(name)
    )
    found = rows("SELECT event_id FROM events_event WHERE stream_ordering > 0 ORDER BY stream_ordering")
    assert [event_id for (event_id,) in found] == [event_id for ordering, event_id in given if ordering > 0]


def test_backfilled_events_keep_their_sign(room, rows):
    found = rows("SELECT event_id FROM events_event WHERE room_id = %s AND stream_ordering < 0", room_id_of(room))
    expected = {event["event_id"] for event in stored_events(room) if event["stream_ordering"] < 0}
    assert {event_id for (event_id,) in found} == expected


def test_stored_bytes_are_the_exact_substring_of_the_line(room, rows):
    with gzip.open(ROOMS / room / "events.jsonl.gz") as lines:
        expected = {json.loads(line)["event_id"]: re.search(rb'"json":(\{.*\})\}$', line.rstrip())[1] for line in lines}
    found = rows(
        "SELECT event_id, json FROM events_eventjson JOIN events_event USING (event_id) WHERE room_id = %s",
        room_id_of(room),
    )
    assert {event_id: bytes(stored) for event_id, stored in found} == expected


def test_unknown_state_is_counted_and_has_no_group(imported, rows):
    ((unresolved,),) = rows("SELECT count(*) FROM events_event WHERE state_unresolved")
    ((without,),) = rows("SELECT count(*) FROM events_event WHERE NOT outlier AND state_group IS NULL")
    assert imported.unresolved == unresolved == without


@pytest.mark.parametrize("stream", ["events", "backfill"])
def test_a_follower_sees_every_fact_below_the_linear_position(stream, imported, rows):
    from django.db import connection

    store_positions()
    declaration = registry.get(stream).declaration
    with connection.cursor() as cursor:
        upto = linear_position(stored_positions(cursor, [stream])[stream].values())
        facts, reached = rows_between(cursor, declaration, None, 1, upto, 100_000)
    expected = rows(
        f"SELECT event_id FROM events_event WHERE {declaration.tables[0].where} ORDER BY abs(stream_ordering)"
    )
    seen = [
        fact.row[1][0] if stream == "events" else fact.row[0]
        for fact in facts
        if stream != "events" or fact.row[0] == "ev"
    ]
    assert reached == upto and seen == [event_id for (event_id,) in expected]


def test_the_job_is_done(imported):
    job = Job.objects.get()
    stages = job.summary.pop("spark")
    assert (job.state, job.summary) == ("done", imported.record())
    assert [stage["name"] for stage in stages] == ["scan", "read", "load"] and all(stage["tasks"] for stage in stages)


def test_nothing_is_left_in_staging(imported):
    assert staging_tables() == []
