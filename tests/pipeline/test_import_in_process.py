"""Small sources are imported in the process of the command: by the same tasks, without a JVM."""

from __future__ import annotations

import json

import psycopg2
import pytest

from pipeline.errors import DiskFull, TaskFailed
from pipeline.importing import import_pack
from pipeline.importing import job as importing
from pipeline.models import Job, JobState
from streams.jobs.errors import JobCancelled
from tests.pipeline.imports import SMALL_ROOMS, bare_room, content, run_import, staging_tables, write_lines
from tests.support.emptying import empty_tables
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


def without_spark(*paths, **options):
    outcome = run_import(*paths, master=None, **options)
    assert outcome.spark_seconds == 0
    return outcome


def test_the_rows_are_those_of_an_import_on_spark(spark):
    here = without_spark(*SMALL_ROOMS).summary(), content()
    assert "spark" not in Job.objects.get().summary
    empty_tables()
    on_spark = run_import(*SMALL_ROOMS).summary(), content()
    assert {**here[0], "seconds": 0} == {**on_spark[0], "seconds": 0} and here[1] == on_spark[1]


def test_a_process_of_its_own_starts_no_jvm(run_manage, tmp_path):
    path = write_lines(tmp_path / "in", *bare_room(1, 20))
    done = run_manage("import_events", str(path), timeout=DEADLINE_SECONDS)
    assert json.loads(done.stdout.splitlines()[-1])["imported"] == 20, done.stderr
    assert "Spark" not in done.stderr and "load: 20 of 20 events" in done.stderr


@pytest.mark.parametrize("size", [1, 2])
def test_larger_sources_go_to_spark(spark, tmp_path, monkeypatch, size):
    path = write_lines(tmp_path / "in", *bare_room(1, 20))
    monkeypatch.setattr(importing, "BYTES_IN_PROCESS", path.stat().st_size * size // 2)
    run_import(path, master=None)
    assert ("spark" in Job.objects.get().summary) == (size == 1)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (psycopg2.OperationalError("the connection is gone"), (TaskFailed, "the connection is gone")),
        (OSError(28, "No space left on device"), (DiskFull, "A disk is full")),
    ],
)
def test_a_task_that_fails_ends_the_job_and_what_is_loaded_stays(tmp_path, monkeypatch, raised, expected):
    path = write_lines(tmp_path / "in", *bare_room(1, 21), *bare_room(2, 15))
    whole = import_pack.load_in

    def fail(cursor, work, pack, step):
        if "!made2:example.org" in [room[0] for room in pack.rooms()]:
            raise raised
        return whole(cursor, work, pack, step)

    with monkeypatch.context() as patch:
        patch.setattr(import_pack, "load_in", fail)
        with pytest.raises(expected[0], match=expected[1]):
            without_spark(path, events_per_pack=20)
    assert len(content()["events"]) == 21 and Job.objects.get().state == JobState.FAILED
    assert without_spark(path, resume=True).imported == 36
    assert staging_tables() == []


def test_a_cancelled_import_ends_between_two_tasks(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "in", *bare_room(1, 21), *bare_room(2, 15))
    monkeypatch.setattr("streams.jobs.job_run._CHECK_SECONDS", 0)
    whole = import_pack.load_in

    def cancel(cursor, work, pack, step):
        Job.objects.update(cancel_asked_by="ann")
        return whole(cursor, work, pack, step)

    monkeypatch.setattr(import_pack, "load_in", cancel)
    with pytest.raises(JobCancelled):
        without_spark(path, events_per_pack=20)
    assert len(content()["events"]) == 21 and staging_tables() == []
