"""Rooms are loaded from staging tables, as a whole or by chunks, by processes that may be killed: the rows are the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection, transaction

from pipeline.frames.parse_lines import LineRules
from pipeline.frames.sources.inputs import open_inputs, parts_of_inputs
from pipeline.importing import load_rooms
from pipeline.importing.load_rooms import RoomWork, load_planned
from pipeline.importing.plan import create_staging, drop_staging, events_done, make_plan, planned_rooms
from pipeline.importing.stage_lines import LineWork, stage_part
from pipeline.loading.load_pack import LoadWork
from pipeline.models import ImportedRoom, Job
from streams.db.driver import dsn
from tests.pipeline.imports import content
from tests.support.emptying import empty_tables
from tests.support.room_data import ROOMS
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import sessions

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = ("v10_gap", "v11_redactions", "v12_power_fork", "v9_restricted")
PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture
def job(transactional_db):
    """The number of a job whose lines are staged and planned."""
    job = Job.objects.create(kind="import_events").pk
    inputs = open_inputs([str(ROOMS / name / "events.jsonl.gz") for name in NAMES])
    with transaction.atomic(), connection.cursor() as cursor:
        create_staging(cursor, job)
    with parts_of_inputs(inputs, 2**24) as parts:
        for number, part in enumerate(parts):
            stage_part(LineWork(job, dsn("default"), LineRules()), number, part)
    with transaction.atomic(), connection.cursor() as cursor:
        make_plan(cursor, job, as_history=False)
    yield job
    with connection.cursor() as cursor:
        drop_staging(cursor, [job])


def empty(job):
    """Empty the site's tables but for the job. Its staging tables stay."""
    empty_tables()
    Job.objects.create(pk=job, kind="import_events")


def left(job):
    with connection.cursor() as cursor:
        return planned_rooms(cursor, job)


def done(job):
    with connection.cursor() as cursor:
        return events_done(cursor, job)


def work(job, *, backward=False, **more):
    return RoomWork(LoadWork(dsn("default"), job, "loader"), backward, **more)


@pytest.mark.parametrize("backward", [False, True], ids=["live", "as history"])
def test_chunks_make_no_difference(job, backward):
    rooms = left(job)
    assert len(rooms) == len(NAMES)
    assert load_planned(work(job, backward=backward), rooms) == [] == left(job)
    assert done(job) == sum(room.events for room in rooms)
    expected = content()
    assert len(expected["events"]) > 500 and {row[-1] for row in expected["events"]} == ({-1} if backward else {-1, 1})
    for size in (7, 100):
        empty(job)
        assert load_planned(work(job, backward=backward, chunk=size), rooms) == []
        assert content() == expected, size


def test_rooms_that_are_loaded_are_not_loaded_again(job):
    rooms = left(job)
    load_planned(work(job), rooms[:2])
    assert left(job) == rooms[2:]
    loaded = content()
    assert load_planned(work(job), rooms[:2]) == [] and content() == loaded


def test_a_room_that_came_to_be_meanwhile_is_left_out(job):
    rooms = left(job)
    load_planned(work(job), rooms[:1])
    ImportedRoom.objects.all().delete()  # as if another job had loaded it
    assert load_planned(work(job), rooms) == [rooms[0].room_id]
    assert ImportedRoom.objects.count() == len(rooms) - 1


def test_progress_inside_a_large_room_is_told(job, monkeypatch):
    told = []
    plain = load_rooms._store_progress
    monkeypatch.setattr(load_rooms, "_store_progress", lambda *given: (plain(*given), told.append(done(job))))
    room, *_ = left(job)
    load_planned(work(job, chunk=20), [room])
    assert told == sorted(told) and told[0] == 10 and room.events // 2 - 20 <= told[-1] <= room.events // 2
    assert done(job) == room.events


KILLED = """
import os, signal, sys
from pipeline.importing import load_rooms
from pipeline.importing.plan import PlannedRoom
from pipeline.loading.load_pack import LoadWork
plain = load_rooms._store_progress
def note(work, number, events):
    plain(work, number, events)
    if events > 40:
        os.kill(os.getpid(), signal.SIGKILL)
load_rooms._store_progress = note
number, room_id, events, job, dsn = sys.argv[1:]
work = load_rooms.RoomWork(LoadWork(dsn, int(job), "loader"), False, 20)
load_rooms.load_planned(work, [PlannedRoom(int(number), room_id, int(events))])
"""


def test_a_worker_killed_in_the_middle_of_a_large_room_leaves_nothing_but_its_progress(job):
    rooms = left(job)
    arguments = [str(rooms[0].room_no), rooms[0].room_id, str(rooms[0].events), str(job), dsn("default")]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], cwd=PROJECT, check=False, timeout=2 * DEADLINE_SECONDS
    )
    assert killed.returncode == -9
    wait_until(lambda: not sessions("replsite spark%"))
    assert left(job) == rooms and not any(content().values()) and 20 < done(job) < rooms[0].events
    load_planned(work(job, chunk=20), rooms)
    again = content()
    empty(job)
    load_planned(work(job), rooms)
    assert again == content()
