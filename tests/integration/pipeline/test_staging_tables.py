"""What an import stages: it is used again by the version that staged it, ordered, and put into the quarantine at the end."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from django.db import connection, transaction

from pipeline.frames.packs import Packs
from pipeline.importing import staging_tables
from pipeline.importing.staging_tables import (
    create_staging,
    drop_staging,
    finish_pack,
    finish_part,
    is_loaded,
    leftover_staging,
    order_known_events,
    packs_done,
    planned_packs,
    store_broken,
    store_packs,
    tables,
)
from pipeline.models import Job, JobState, QuarantinedLine

JOB = 77


@pytest.fixture
def cursor(transactional_db):
    with connection.cursor() as found:
        make(found)
        yield found
        drop_staging(found, [JOB, JOB * 10])


def make(cursor, job=JOB, **more):
    with transaction.atomic():
        create_staging(cursor, job, **more)


def found(cursor, sql):
    cursor.execute(sql.replace("{", f"pipeline_stage_{JOB}_").replace("}", ""))
    return cursor.fetchall()


def test_what_is_staged_stays_for_a_job_that_goes_on(cursor):
    assert finish_part(cursor, JOB, 0) and finish_pack(cursor, JOB, 3, 10)
    make(cursor)
    assert not finish_part(cursor, JOB, 0) and not finish_pack(cursor, JOB, 3, 10)
    assert packs_done(cursor, JOB) == [3]


@pytest.mark.parametrize("signatures", ["trusted", "verified abc"])
def test_what_another_version_staged_or_verified_with_other_keys_is_not_read(cursor, signatures):
    finish_part(cursor, JOB, 0)
    if signatures == "trusted":
        cursor.execute(f"UPDATE {tables(JOB)['step']} SET step = 'created' WHERE starts_with(step, 'created')")
    make(cursor, signatures=signatures)
    assert finish_part(cursor, JOB, 0)


def test_packs_are_those_that_were_planned_first(cursor):
    assert planned_packs(cursor, JOB) is None
    packs = Packs({"!a:b": 0}, 5, 100_000, True)
    store_packs(cursor, JOB, asdict(packs))
    assert Packs(**planned_packs(cursor, JOB)) == packs


@pytest.mark.parametrize(("as_history", "order"), [(False, "defcabg"), (True, "gbacdef")])
def test_history_of_known_rooms_comes_first_from_its_newest_event(cursor, as_history, order):
    given = {"a": 4, "b": None, "c": 3, "d": -2, "e": -5, "f": -7, "g": None}
    for line, (name, place) in enumerate(given.items()):
        cursor.execute(
            f"INSERT INTO {tables(JOB)['event']} (source, line, event_id, stream_ordering) VALUES (0, %s, %s, %s)",
            [line, f"${name}", place],
        )
    assert not is_loaded(cursor, JOB)
    order_known_events(cursor, JOB, as_history=as_history)
    assert is_loaded(cursor, JOB)
    known = found(cursor, "SELECT event_id, backward FROM {known} JOIN {event} USING (source, line) ORDER BY place")
    assert "".join(event_id[1] for event_id, _ in known) == order
    assert [backward for _, backward in known] == [name in "def" or as_history for name in order]


def test_the_first_lines_that_are_put_aside_are_written_down_and_all_are_counted(cursor, monkeypatch):
    monkeypatch.setattr(staging_tables, "MOST_QUARANTINED", 3)
    job = Job.objects.create(pk=JOB, kind="import_events", state=JobState.RUNNING, arguments={})
    for source, line, head in ((1, 21, b"x"), (0, 12, b"x"), (0, 4, b""), (1, 1, None), (1, 22, b"x")):
        cursor.execute(
            f"INSERT INTO {tables(JOB)['broken']} VALUES (%s, %s, 'not-json', NULL, %s)", [source, line, head]
        )
    for _ in range(2):  # of a job that goes on
        assert store_broken(cursor, JOB, ["a", "b"]) == 5
    lines = QuarantinedLine.objects.filter(job=job).order_by("file", "line")
    assert [(one.file, one.line, one.detail, bytes(one.content)) for one in lines] == [
        ("a", 4, "", b""), ("a", 12, "", b"x"), ("b", 1, "", b""),
    ]  # fmt: skip


def test_tables_of_a_job_are_not_those_of_one_whose_number_begins_alike(cursor):
    make(cursor, JOB * 10)
    drop_staging(cursor, [JOB])
    counted = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'pipeline\\_stage\\_%s\\_%%'"
    counts = []
    for job in (JOB, JOB * 10):
        cursor.execute(counted % job)
        counts.append(cursor.fetchone()[0])
    assert counts[0] == 0 < counts[1]


@pytest.mark.parametrize(
    ("state", "left"),
    [(JobState.CANCELLED, [JOB]), (JobState.DONE, [JOB]), (JobState.FAILED, []), (JobState.RUNNING, [])],
)
def test_what_nobody_goes_on_with_is_left_over(cursor, state, left):
    Job.objects.create(pk=JOB, kind="import_events", state=state, arguments={})
    assert leftover_staging(cursor, "import_events") == left
    assert leftover_staging(cursor, "export") == []
