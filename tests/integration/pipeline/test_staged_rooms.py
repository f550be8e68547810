"""Rooms are worked out from staging tables, as a whole or by chunks, by processes that may be killed: the rows are the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection, transaction

from pipeline.frames.parse_lines import LineRules
from pipeline.frames.sources.inputs import open_inputs, parts_of_inputs
from pipeline.importing.parse_lines import LineWork, stage_part
from pipeline.importing.plan import create_staging, drop_staging, make_plan, planned_rooms
from pipeline.importing.staging_tables import BROKEN, RESULT_TABLES, WORKING, table_name
from pipeline.importing.work_out_rooms import RoomWork, stage_rooms
from streams.db.driver import dsn
from tests.support.room_data import ROOMS
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import sessions

pytestmark = pytest.mark.django_db(transaction=True)

JOB = 4711
NAMES = ("v10_gap", "v11_redactions", "v12_power_fork", "v9_restricted")
PROJECT = Path(__file__).resolve().parents[3]


def query(sql, *values):
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()


@pytest.fixture
def rows():
    return query


@pytest.fixture
def planned(transactional_db):
    """The rooms of a job whose lines are staged and planned."""
    inputs = open_inputs([str(ROOMS / name / "events.jsonl.gz") for name in NAMES])
    with transaction.atomic(), connection.cursor() as cursor:
        create_staging(cursor, JOB)
    with parts_of_inputs(inputs, 2**24) as parts:
        for number, part in enumerate(parts):
            stage_part(LineWork(JOB, dsn("default"), LineRules()), number, part)
    with transaction.atomic(), connection.cursor() as cursor:
        make_plan(cursor, JOB, as_history=False)
        rooms = planned_rooms(cursor, JOB)
    yield [(room.room_no, room.room_id, room.events) for room in rooms]
    with connection.cursor() as cursor:
        drop_staging(cursor, [JOB])


def taken(rows):
    """All results, which are gone afterwards."""
    found = {}
    for table in (*RESULT_TABLES, BROKEN, WORKING):
        name = table_name(JOB, table.name)
        found[table.name] = sorted(rows(f"SELECT * FROM {name}"), key=repr)
        rows(f"DELETE FROM {name} RETURNING 1")
    return found


def work(**more):
    return RoomWork(JOB, dsn("default"), as_history=False, **more)


@pytest.mark.parametrize("backward", [False, True], ids=["live", "as history"])
def test_chunks_make_no_difference(planned, rows, backward):
    whole = RoomWork(JOB, dsn("default"), backward)
    assert stage_rooms(whole, planned) == sum(events for *_, events in planned)
    expected = taken(rows)
    assert len(expected["result_room"]) == len(NAMES) and len(expected["result_event"]) > 500
    for size in (7, 100):
        stage_rooms(RoomWork(JOB, dsn("default"), backward, size), planned)
        assert taken(rows) == expected, size


def test_an_event_in_a_large_room_that_comes_twice_puts_the_room_aside(planned, rows):
    (number, *_, events), *_ = planned
    kept = table_name(JOB, "kept")
    columns = "event_id, room_id, room_version, type, stream_ordering, room_no"
    event = table_name(JOB, "event")
    rows(
        f"WITH one AS (SELECT * FROM {kept} WHERE room_no = %s LIMIT 1), "
        f"twice AS (INSERT INTO {kept} (seq, {columns}) SELECT -1, {columns} FROM one) "
        f"INSERT INTO {event} SELECT -1, e.room_id, e.room_version, e.event_id, e.type, e.outlier, e.fits, e.stream_ordering, "
        f"e.packed, e.json FROM {event} e JOIN one USING (seq) RETURNING 1",
        number,
    )
    stage_rooms(work(chunk=10), planned[:1])
    found = taken(rows)
    assert len(found["broken"]) == events + 1 and "twice" in found["broken"][0][2]
    assert len(found["result_room"]) == 1 and not found["result_event"]


def test_progress_inside_a_large_room_is_told_and_gone_at_the_end(planned, rows, monkeypatch):
    told = []
    seen = f"SELECT events FROM {table_name(JOB, WORKING.name)}"
    written = "pipeline.importing.work_out_rooms._Progress.written"
    from pipeline.importing.work_out_rooms import _Progress

    plain = _Progress.written
    monkeypatch.setattr(written, lambda self, events: (plain(self, events), told.append(rows(seen)[0][0])))
    (*_, events) = planned[0]
    stage_rooms(work(chunk=20), planned[:1])
    assert told == sorted(told) and told[0] == 10 and events - 20 <= told[-1] < events
    assert rows(seen) == []


KILLED = """
import os, signal, sys
from pipeline.importing import work_out_rooms as stage_rooms
plain = stage_rooms._Progress.written
def written(self, events):
    plain(self, events)
    if events > 40:
        os.kill(os.getpid(), signal.SIGKILL)
stage_rooms._Progress.written = written
number, room_id, events, job, dsn = sys.argv[1:]
stage_rooms.stage_rooms(stage_rooms.RoomWork(int(job), dsn, False, 20), [(int(number), room_id, int(events))])
"""


def test_a_worker_killed_in_the_middle_of_a_large_room_leaves_nothing_but_its_progress(planned, rows):
    arguments = [*map(str, planned[0]), str(JOB), dsn("default")]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], cwd=PROJECT, check=False, timeout=2 * DEADLINE_SECONDS
    )
    assert done.returncode == -9
    wait_until(lambda: not sessions("replsite spark staging"))
    assert rows(f"SELECT count(*) FROM {table_name(JOB, 'result_event')}") == [(0,)]
    assert rows(f"SELECT count(*) FROM {table_name(JOB, WORKING.name)}") == [(1,)]
    stage_rooms(work(chunk=20), planned)
    again = taken(rows)
    stage_rooms(work(), planned)
    assert again == taken(rows)
