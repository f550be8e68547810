"""Jobs in the snapshot: what is listed, under which word, and that page, command, metrics and health tell the same."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib import admin
from django.db import connection
from django.db.models.functions import Now
from django.urls import get_resolver
from django.utils import timezone

from pipeline.models import BatchLedger, Job, JobState
from replsite.dashboard.page import live_page_data
from replsite.live_rows.jobs import MOST_OPEN_JOBS, MOST_OVER_JOBS, JobsView
from replsite.live_rows.reading import read_jobs_with_status, read_snapshot
from replsite.metrics.cluster import families
from streams.jobs.rows import begin_job, hold_lock
from streams.jobs.run import queue_job
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def jobs(seconds_later: float = 0.0):
    with connection.cursor() as cursor:
        return read_jobs_with_status(cursor, timezone.now() + timedelta(seconds=seconds_later)).jobs


def words(seconds_later: float = 0.0):
    return {job.kind: str(job.status.word) for job in jobs(seconds_later)}


def over(kind: str, state: str, **columns):
    return Job.objects.create(kind=kind, state=state, finished_at=columns.pop("finished_at", Now()), **columns)


def test_a_job_at_work_tells_how_far_it_is_and_the_time_left():
    with hold_lock("default") as lock:
        job = begin_job(lock, "walk", {}, "default")
        Job.objects.filter(pk=job.pk).update(stage="walk", done=50, total=200, rate=10.0, unit="steps")
        (found,) = jobs()
    assert (str(found.status.word), found.seconds_left) == ("running", 15.0)
    assert (found.done, found.total, found.unit) == (50, 200, "steps")


def test_a_job_whose_process_was_killed_is_called_that():
    with hold_lock("default") as lock:
        begin_job(lock, "walk", {}, "default")
    wait_until(lambda: words() == {"walk": "killed"})


def test_a_queued_job_waits_for_its_turn_or_for_somebody_to_begin_it():
    queue_job("censor", {}, "ann")
    assert words() == {"censor": "queued"}
    assert words(61) == {"censor": "waiting"}


def test_a_queued_job_behind_another_one_waits_for_its_turn_only():
    queue_job("censor", {}, "ann")
    with hold_lock("default") as lock:
        first = begin_job(lock, "walk", {}, "default")
        Job.objects.filter(pk=first.pk).update(queued_at=Now())
        assert words(3_600)["censor"] == "queued"


def test_what_ended_is_listed_for_a_day_with_its_reason():
    over("new", JobState.FAILED, error="the disk is full")
    over("old", JobState.FAILED, finished_at=timezone.now() - timedelta(days=2))
    (found,) = jobs()
    assert (found.kind, found.status.sentence) == ("new", "the disk is full")


def test_the_worst_come_first_and_the_list_is_bounded():
    for _ in range(MOST_OVER_JOBS + 5):
        over("done", JobState.DONE)
    for _ in range(MOST_OPEN_JOBS + 5):
        queue_job("check streams", {}, "ann")
    over("failed", JobState.FAILED)
    found = jobs()
    assert found[0].kind == "failed"
    assert len(found) == MOST_OPEN_JOBS + MOST_OVER_JOBS


def resynced(left, rooms=("!r:a.test",), what="state", *, dry_run=True):
    rooms = None if rooms is None else list(rooms)
    arguments = {"what": what, "rooms": rooms, "dry_run": dry_run, "master": None}
    return over("resync", JobState.DONE, arguments=arguments, summary={"left": left})


def test_a_check_that_found_differences_is_a_trouble_with_its_repair():
    check = resynced(3)
    (found,) = jobs()
    assert (str(found.status.word), found.status.actions) == ("done with differences", ("repair",))
    assert found.status.sentence == ("3 differences in !r:a.test. Repair them: manage.py resync state '!r:a.test'.")
    (problem,) = read_snapshot().health.problems
    assert (problem.about, problem.verdict) == (str(check.pk), found.status)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"rooms": None}, "3 differences in all rooms. Repair them: manage.py resync state --all."),
        ({"rooms": ["!a", "!b"]}, "3 differences in 2 rooms. Repair them: manage.py resync state '!a' '!b'."),
        ({"rooms": ["!a"] * 9}, "3 differences in 9 rooms. Repair them: manage.py resync state --all."),
        (
            {"rooms": None, "what": "positions"},
            "3 differences in the streams. Repair them: manage.py resync positions.",
        ),
        ({"dry_run": False}, "3 differences in !r:a.test cannot be recomputed and are left. Its page lists them."),
    ],
)
def test_differences_are_told_with_their_place_and_command(arguments, sentence):
    resynced(3, **arguments)
    (found,) = jobs()
    assert found.status.sentence == sentence


@pytest.mark.parametrize(
    ("later", "counts"),
    [
        ({}, True),
        ({"dry_run": False}, True),
        ({"rooms": None}, True),
        ({"rooms": ("!other:a.test", "!r:a.test")}, True),
        ({"what": "rooms"}, True),
        ({"rooms": ("!other:a.test",)}, False),
        ({"what": "visibility"}, False),
        ({"what": "caches"}, False),
    ],
)
def test_a_later_resync_of_the_same_rooms_is_what_counts(later, counts):
    first = resynced(3)
    resynced(0, **later)
    assert [job.id for job in jobs() if "differences" in job.status.word] == ([] if counts else [first.pk])
    last = resynced(2, **later)
    assert {job.id for job in jobs() if "differences" in job.status.word} == (
        {last.pk} if counts else {first.pk, last.pk}
    )


def test_a_check_of_all_rooms_or_of_others_is_not_ended_by_one_of_a_room():
    check = resynced(3, None, "caches")
    resynced(0, ("!r:a.test",), "caches")
    resynced(0, None, "rooms")
    assert [job.id for job in jobs() if "differences" in job.status.word] == [check.pk]


@pytest.mark.parametrize(
    "row",
    [
        {"summary": None}, {"summary": [1]}, {"summary": {"left": "3"}}, {"arguments": [1]}, {"arguments": "x"},
        {"state": JobState.FAILED}, {"kind": "walk"},
    ],
)  # fmt: skip
def test_rows_of_any_form_are_no_differences(row):
    columns = {"arguments": {"what": "state", "rooms": None}, "summary": {"left": 3}, "kind": "resync", **row}
    over(columns.pop("kind"), columns.pop("state", JobState.DONE), **columns)
    assert [job.status.word for job in jobs()] == [row.get("state", "done")]


def test_jobs_that_came_later_do_not_hide_differences():
    check = resynced(3)
    for _ in range(MOST_OVER_JOBS + 5):
        over("done", JobState.DONE)
    assert jobs()[0].id == check.pk


def test_killed_jobs_do_not_hide_one_that_is_at_work():
    Job.objects.bulk_create(Job(kind="killed", state=JobState.RUNNING) for _ in range(MOST_OPEN_JOBS + 5))
    with hold_lock("default") as lock:
        at_work = begin_job(lock, "walk", {}, "default")
        wait_until(lambda: at_work.pk in {job.id for job in jobs()})
        assert words()["walk"] == "running"


def test_page_command_metrics_and_health_tell_the_same(run_manage):
    over("censor", JobState.FAILED, error="the <b>disk</b> is full", asked_by="ann")
    snapshot = read_snapshot()
    (group,) = live_page_data(snapshot)["jobs"]
    assert [cell["text"] for cell in group["head"]["cells"]][1] == "failed"
    assert group["head"]["cells"][-1]["text"] == "the <b>disk</b> is full"
    assert "failed: the <b>disk</b> is full" in snapshot.health.sentence
    samples = {
        (sample.name, sample.labels.get("status") or sample.labels.get("job")): sample.value
        for family in families(snapshot, synapse_names=False, server_name="s")
        for sample in family.samples
    }
    assert samples["replsite_jobs", "failed"] == 1
    assert samples["replsite_job_last_failure_timestamp_seconds", "censor"] > 0
    shown = run_manage("streams", "--now").stdout
    assert "censor" in shown
    assert "the <b>disk</b> is full" in shown


def test_a_site_without_jobs_tells_of_none():
    snapshot = read_snapshot()
    assert snapshot.jobs.jobs == ()
    assert live_page_data(snapshot)["jobs"] == []


def test_a_site_without_the_pipeline_has_no_jobs(settings, monkeypatch):
    assert get_resolver().url_patterns  # made once a process, for all tests: not by a site that lacks pages
    for module in (admin, admin.sites):  # the theme puts an empty one there whenever apps are set
        monkeypatch.setattr(module, "site", module.site)
    over("walk", JobState.FAILED)
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "pipeline"]
    assert jobs() == ()
    assert read_snapshot().jobs == JobsView()


def test_queries_of_the_live_pipeline_are_read():
    at = timezone.now()
    for name, batches in (("statistics", 2), ("mine", 7)):
        BatchLedger.objects.create(query=name, batch_id=1, offsets={}, batches=batches, applied_at=at)
    with connection.cursor() as cursor:
        found = read_jobs_with_status(cursor, at).queries
    assert [(query.query, query.batches, query.applied_at) for query in found] == [
        ("mine", 7, at),
        ("statistics", 2, at),
    ]
