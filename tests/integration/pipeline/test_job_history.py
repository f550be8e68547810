"""Jobs that are over do not stay for ever, and what is not over, or held, does."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from pipeline.conf import pipeline_settings
from pipeline.models import ImportedRoom, ImportSource, Job, JobState, QuarantinedLine
from streams.jobs import history
from streams.jobs.history import Kept, remove_old_jobs
from streams.jobs.rows import claim_resumable_job, hold_lock

pytestmark = pytest.mark.django_db(transaction=True)
OVER = [JobState.DONE, JobState.FAILED, JobState.CANCELLED]


def job(state: str = JobState.DONE, days: float = 0.0) -> Job:
    at = timezone.now() - timedelta(days=days)
    return Job.objects.create(kind="walk", state=state, updated_at=at, finished_at=at if state in OVER else None)


def remove(**told: object) -> int:
    conf = pipeline_settings()
    with hold_lock("default") as lock:
        return remove_old_jobs(lock, "default", Kept(conf.job_history_days, conf.job_history_count), **told)


def left() -> set[int]:
    return set(Job.objects.values_list("pk", flat=True))


def test_jobs_that_were_over_for_long_go(settings):
    settings.REPLSITE_JOB_HISTORY_DAYS = 30.0
    old = [job(state, days=31) for state in OVER]
    young = [job(state, days=29) for state in OVER]
    assert remove() == len(old)
    assert left() == {one.pk for one in young}


def test_the_oldest_go_where_there_are_too_many(settings):
    settings.REPLSITE_JOB_HISTORY_COUNT = 3
    made = [job() for _ in range(5)]
    assert remove() == 2
    assert left() == {one.pk for one in made[2:]}


def test_what_waits_or_runs_stays_and_counts_for_nothing(settings):
    settings.REPLSITE_JOB_HISTORY_COUNT = 0
    open_ones = [job(JobState.QUEUED, days=1000), job(JobState.RUNNING, days=1000)]
    job()
    with hold_lock("default") as at_work:
        assert at_work.acquire(open_ones[1].pk)
        assert remove() == 1
    assert left() == {one.pk for one in open_ones}


def test_one_that_was_killed_is_over_after_a_day_and_goes_like_a_failed_one(settings):
    settings.REPLSITE_JOB_HISTORY_DAYS = 30.0
    ages = {days: job(JobState.RUNNING, days) for days in (0.5, 2, 31)}
    queued = job(JobState.RUNNING, 31)
    Job.objects.filter(pk=queued.pk).update(queued_at=timezone.now())
    assert remove() == 1 and left() == {ages[0.5].pk, ages[2].pk, queued.pk}
    killed = Job.objects.get(pk=ages[2].pk)
    assert (killed.state, killed.error, killed.finished_at) == (JobState.FAILED, "killed", ages[2].updated_at)
    assert {Job.objects.get(pk=one.pk).state for one in (ages[0.5], queued)} == {JobState.RUNNING}
    with hold_lock("default") as lock:
        found = claim_resumable_job(lock, "walk", {}, "default")
        assert found is not None and found.state == JobState.RUNNING, "it can still be resumed"


def test_with_a_job_goes_all_that_tells_of_it_however_much(settings, monkeypatch):
    settings.REPLSITE_JOB_HISTORY_COUNT = 1
    monkeypatch.setattr(history, "_ROWS_AT_ONCE", 2)
    monkeypatch.setattr(history, "_ROWS", history._ROWS.replace("10000", "2"))
    for one in (job(), job()):
        QuarantinedLine.objects.bulk_create(
            QuarantinedLine(job=one, file="x", line=n, reason="not-json", content=b"") for n in range(5)
        )
        ImportedRoom.objects.create(job=one, room_id="!r:x", imported=1, rejected=0, unresolved=0)
        ImportSource.objects.create(job=one, number=0, name="x", form="lines", identity={})
    assert remove() == 1
    assert [model.objects.count() for model in (QuarantinedLine, ImportedRoom, ImportSource)] == [5, 1, 1]


def test_a_job_that_is_being_resumed_stays(settings):
    settings.REPLSITE_JOB_HISTORY_COUNT = 0
    failed = job(JobState.FAILED)
    with hold_lock("default") as another:
        assert another.acquire(failed.pk)
        assert remove() == 0
    assert remove() == 1


def test_a_job_that_was_begun_again_since_it_was_listed_stays(settings, monkeypatch):
    settings.REPLSITE_JOB_HISTORY_COUNT = 0
    failed = job(JobState.FAILED)
    monkeypatch.setattr(history, "_due", lambda *_: [failed.pk])
    Job.objects.update(state=JobState.RUNNING)
    assert (remove(), left()) == (0, {failed.pk})


def test_one_that_was_removed_since_it_was_listed_is_not_resumed(monkeypatch):
    job(JobState.FAILED)
    with hold_lock("default") as lock:
        acquire = lock.acquire
        monkeypatch.setattr(lock, "acquire", lambda number: acquire(number) and bool(Job.objects.all().delete()))
        assert claim_resumable_job(lock, "walk", {}, "default") is None


def test_an_import_keeps_its_row_while_its_staging_tables_are_there(settings):
    settings.REPLSITE_JOB_HISTORY_COUNT = 0
    failed = job(JobState.FAILED)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE pipeline_stage_{failed.pk}_event ()")
        assert remove() == 0
        cursor.execute(f"DROP TABLE pipeline_stage_{failed.pk}_event")
    assert remove() == 1


def test_it_ends_between_two_jobs_when_it_is_to_stop(settings):
    settings.REPLSITE_JOB_HISTORY_COUNT = 0
    for _ in range(3):
        job()
    answers = iter([False, True])
    assert remove(stopping=lambda: next(answers)) == 1


def test_runjobs_removes_them_once_nothing_is_queued(settings):
    settings.REPLSITE_JOB_HISTORY_DAYS = 0.0
    job(days=1)
    call_command("runjobs", "--once", stdout=io.StringIO())
    assert left() == set()


def test_very_many_are_removed_part_by_part(settings, monkeypatch):
    settings.REPLSITE_JOB_HISTORY_DAYS = 1.0
    monkeypatch.setattr(history, "_DUE", history._DUE.replace("LIMIT 100", "LIMIT 2"))
    for _ in range(5):
        job(days=2)
    assert (remove(), left()) == (5, set())
