"""Jobs in the admin: seen by staff, queued and cancelled by those with the permission, by POST only, and logged."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User

from pipeline.job_runs import queue_job
from pipeline.models import Job, JobState

pytestmark = pytest.mark.django_db
LIST, QUEUE = "/admin/pipeline/job/", "/admin/pipeline/job/queue/"


@pytest.fixture
def staff(client):
    """``staff("cancel_job", …)``: a client of a user with these permissions and that to look."""

    def log_in(*permissions):
        user = User.objects.create_user("ann", password="x", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=["view_job", *permissions]))
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def job():
    return queue_job("censor", {"days": 7}, "bob <b>bold</b>")


def test_the_list_shows_progress_and_text_of_others_as_text(staff, job):
    Job.objects.filter(pk=job.pk).update(state="running", stage="censor", done=50, total=200, rate=10, unit="events")
    page = staff().get(LIST).content.decode()
    assert "censor: 50 of 200 events, 10/s, 15 s left" in page
    assert "killed" in page, "no process works on it"
    assert "bob &lt;b&gt;bold&lt;/b&gt;" in page
    assert "Queue a job" not in page


def test_the_list_asks_a_fixed_number_of_questions(staff, job, django_assert_max_num_queries):
    client = staff("queue_job")
    for _ in range(30):
        queue_job("check streams", {}, "ann")
    with django_assert_max_num_queries(12):
        assert "Queue a job" in client.get(LIST).content.decode()


def test_a_job_is_cancelled_by_post_only_and_logged(staff, job):
    client = staff("cancel_job")
    page = client.get(f"{LIST}{job.pk}/cancel/")
    assert "Cancel job" in page.content.decode()
    job.refresh_from_db()
    assert job.state == JobState.QUEUED
    client.post(f"{LIST}{job.pk}/cancel/")
    job.refresh_from_db()
    assert (job.state, job.cancel_asked_by) == (JobState.CANCELLED, "ann")
    assert "Cancelled" in LogEntry.objects.get().change_message


def test_a_job_is_queued_by_form_and_logged(staff):
    client = staff("queue_job")
    assert client.get(QUEUE).status_code == 200
    assert client.post(QUEUE, {"kind": "censor", "arguments": '{"days": 3}'}).status_code == 302
    assert Job.objects.values_list("kind", "arguments", "asked_by", "state").get() == (
        "censor", {"days": 3, "dry_run": False}, "ann", "queued",
    )  # fmt: skip
    assert "Queued" in LogEntry.objects.get().change_message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [("{", "no JSON"), ("[1]", "object"), ('{"days": "x"}', "days must"), ('{"a": 1}', "Unknown")],
)
def test_unusable_arguments_are_told_beside_their_field(staff, arguments, said):
    page = staff("queue_job").post(QUEUE, {"kind": "censor", "arguments": arguments})
    assert page.status_code == 200
    assert said in page.content.decode()
    assert not Job.objects.exists()


@pytest.mark.parametrize("method", ["get", "post"])
def test_nobody_queues_or_cancels_without_the_permission(staff, job, method):
    client = staff()
    assert getattr(client, method)(QUEUE).status_code == 403
    assert getattr(client, method)(f"{LIST}{job.pk}/cancel/").status_code == 403
    job.refresh_from_db()
    assert job.state == JobState.QUEUED


def test_a_job_that_is_not_there_is_not_found(staff):
    assert staff("cancel_job").get(f"{LIST}4711/cancel/").status_code == 404


def test_those_who_are_no_staff_see_the_login(client, job):
    client.force_login(User.objects.create_user("eve"))
    for page in (LIST, QUEUE, f"{LIST}{job.pk}/cancel/"):
        assert client.get(page).status_code == 302


def test_a_jobs_page_shows_its_figures_side_by_side_and_as_text(staff, job):
    figures = {"rows": 1200, "<b>rooms</b>": 3, "gone": None}
    Job.objects.filter(pk=job.pk).update(state="done", before=figures, after={**figures, "rows": 200, "new": [1]})
    page = " ".join(staff().get(f"{LIST}{job.pk}/change/").content.decode().split())
    assert "1,200</td>" in page and "200</td>" in page and "-1,000</td>" in page
    assert "&lt;b&gt;rooms&lt;/b&gt;" in page and "<b>rooms</b>" not in page
    assert "[1]</td>" in page


def test_a_jobs_page_without_figures_says_so(staff, job):
    assert "None were noted." in staff().get(f"{LIST}{job.pk}/change/").content.decode()
