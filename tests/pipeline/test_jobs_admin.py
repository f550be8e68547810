"""Jobs in the admin: seen by staff, queued and cancelled by those with the permission, by POST only, and logged."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from urllib.parse import quote

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db.models import JSONField, Value
from django.db.models.functions import Now
from django.test import Client

from events.admin.links import room_url
from events.models import RoomSummary
from pipeline.models import Job, JobState
from streams.jobs import admin
from streams.jobs.rows import hold_lock
from streams.jobs.run import queue_job
from tests.integration.events.test_purging import talked_room

pytestmark = pytest.mark.django_db
LIST, QUEUE = "/admin/pipeline/job/", "/admin/pipeline/job/queue/"
CENSOR = f"{QUEUE}?kind=censor"


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


def test_what_can_be_run_dry_is_queued_as_a_dry_run_and_logged(staff):
    client = staff("queue_job")
    assert "censor" in client.get(QUEUE).content.decode()
    assert client.get(CENSOR).status_code == 200
    assert not Job.objects.exists(), "looking does nothing"
    page = client.post(CENSOR, {"days": "3", "dry_run": ""})
    job = Job.objects.get()
    assert (page.status_code, page["Location"]) == (302, f"{LIST}{job.pk}/change/")
    told = {"days": 3, "dry_run": True}
    assert (job.kind, job.arguments, job.asked_by, job.state) == ("censor", told, "ann", "queued")
    entry = LogEntry.objects.get()
    assert "Queued: censor" in entry.change_message
    assert (entry.user.username, entry.object_id) == ("ann", str(job.pk))


def test_what_changes_nothing_is_queued_at_once(staff):
    assert staff("queue_job").post(f"{QUEUE}?kind=check streams").status_code == 302
    assert Job.objects.get().arguments == {}


def test_what_cannot_be_run_dry_is_for_those_who_may_and_asked_twice(staff, settings, tmp_path):
    settings.REPLSITE_IMPORT_FOLDER = tmp_path
    (tmp_path / "rooms.jsonl").write_text("")
    client, entered = staff("queue_job"), {"sources": "rooms.jsonl\n"}
    assert client.post(f"{QUEUE}?kind=import_events", entered).status_code == 403
    User.objects.get().user_permissions.add(Permission.objects.get(codename="carry_out_job"))
    page = client.post(f"{QUEUE}?kind=import_events", entered)
    assert "rooms.jsonl" in page.content.decode()
    assert not Job.objects.exists()
    assert client.post(f"{QUEUE}?kind=import_events", {**entered, "confirmed": "yes"}).status_code == 302
    assert Job.objects.get().kind == "import_events"


def test_who_may_only_try_does_not_choose_the_cluster(staff):
    """Executors are told how to reach the database."""
    client, entered = staff("queue_job"), {"what": "state", "master": "spark://elsewhere:7077"}
    page = client.post(f"{QUEUE}?kind=resync", entered)
    assert "pipeline.carry_out_job" in page.content.decode()
    assert not Job.objects.exists()
    User.objects.get().user_permissions.add(Permission.objects.get(codename="carry_out_job"))
    assert client.post(f"{QUEUE}?kind=resync", entered).status_code == 302
    assert Job.objects.get().arguments["master"] == entered["master"]


@pytest.mark.parametrize(
    ("kind", "entered", "said"),
    [
        ("censor", {"days": "x"}, "Enter a number"),
        ("censor", {"days": "-1"}, "days must"),
        ("purge room", {}, "required"),
        ("purge history", {"room": "!a:b"}, "Give one of"),
        ("purge history", {"room": "!mistyped:b", "before_time": "5"}, "!mistyped:b"),
        ("resync", {"what": "everything!"}, "Select a valid choice"),
        ("purge room", {"room": "!a:b\x00"}, "Null characters"),
        ("resync", {"what": "positions", "rooms": "<b>x</b>"}, "&lt;b&gt;x&lt;/b&gt;"),
    ],
)
def test_unusable_arguments_are_told_beside_their_field(staff, kind, entered, said):
    page = staff("queue_job").post(f"{QUEUE}?kind={kind}", entered)
    assert (page.status_code, said in page.content.decode()) == (200, True)
    assert not Job.objects.exists()


# --- carried out ------------------------------------------------------------------------------------------------------


@pytest.fixture
def dry():
    """A dry run that is done."""
    job = queue_job("censor", {"days": 7, "dry_run": True}, "bob")
    figures = {"due": 1234}
    Job.objects.filter(pk=job.pk).update(state="done", before=figures, after={"due": 34}, finished_at=Now())
    return job


def test_the_figures_of_a_dry_run_are_confirmed_and_it_is_carried_out_once(staff, dry):
    client, address = staff("carry_out_job"), f"{LIST}{dry.pk}/carry-out/"
    assert f"{dry.pk}/carry-out/" in client.get(f"{LIST}{dry.pk}/change/").content.decode()
    page = client.get(address).content.decode()
    assert "1,234" in page and "-1,200" in page and "Carry out censor" in page
    assert Job.objects.count() == 1, "looking does nothing"
    client.post(address)
    job = Job.objects.get(confirmed_from=dry.pk)
    assert (job.kind, job.arguments, job.asked_by) == ("censor", {"days": 7, "dry_run": False}, "ann")
    assert f"as dry run {dry.pk} has shown" in LogEntry.objects.get().change_message
    page = client.post(address).content.decode()
    assert "was confirmed already" in page
    assert Job.objects.count() == 2
    page = client.get(f"{LIST}{dry.pk}/change/").content.decode()
    assert f"Carried out by job {job.pk}" in page and "carry-out" not in page


def test_what_a_purge_deletes_is_confirmed_in_words_with_a_date(staff):
    made = talked_room(3)
    told = {"room": made.room_id, "before_time": "2026-11-22T02:00", "dry_run": True}
    number = queue_job("purge history", told, "bob").pk
    words = "messages before 22 Nov 2026 02:00 UTC: 1,833 would be deleted, 4,819 kept as outliers; no archive"
    Job.objects.filter(pk=number).update(state="done", summary={"words": words}, finished_at=Now())
    page = staff("carry_out_job").get(f"{LIST}{number}/carry-out/").content.decode()
    assert f"M{words[1:]}." in page
    assert ">22 Nov 2026 02:00 UTC<" in page and "1795312800000" not in page


def test_two_who_confirm_at_the_same_time_carry_out_one(staff, dry, monkeypatch):
    monkeypatch.setattr(admin, "why_not", lambda dry: None)  # both have looked before either has queued
    client = staff("carry_out_job")
    for _ in range(2):
        assert client.post(f"{LIST}{dry.pk}/carry-out/").status_code == 302
    assert Job.objects.filter(confirmed_from=dry.pk).count() == 1
    assert LogEntry.objects.count() == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"state": "running", "finished_at": None}, "only the figures of one that is done"),
        ({"state": "failed"}, "only the figures of one that is done"),
        ({"arguments": {"days": 7, "dry_run": False}}, "is no dry run"),
        ({"arguments": {"days": 7, "dry_run": "yes"}}, "is no dry run"),
        ({"kind": "of another version"}, "is no dry run"),
        ({"finished_at": Now() - timedelta(hours=2)}, "more than an hour ago"),
    ],
)
def test_only_fresh_figures_of_a_dry_run_can_be_confirmed(staff, dry, changed, said):
    Job.objects.filter(pk=dry.pk).update(**changed)
    client = staff("carry_out_job")
    for method in (client.get, client.post):
        assert said in method(f"{LIST}{dry.pk}/carry-out/").content.decode()
    assert not Job.objects.filter(confirmed_from=dry.pk).exists()
    assert "carry-out" not in client.get(f"{LIST}{dry.pk}/change/").content.decode()


@pytest.mark.parametrize("may_queue", [True, False])
def test_a_dry_run_that_is_too_old_leads_to_the_form_of_another_one(staff, may_queue):
    old = Job.objects.create(
        kind="resync", state="done", finished_at=Now() - timedelta(hours=2),
        arguments={"what": "rooms", "rooms": ["!a:x&y", "!b:x"], "master": None, "dry_run": True},
    )  # fmt: skip
    client = staff("carry_out_job", *(["queue_job"] if may_queue else []))
    page = client.get(f"{LIST}{old.pk}/carry-out/").content.decode()
    link = re.search('href="([^"]*)">Queue another dry run', page)
    assert (link is not None) == may_queue
    if link is not None:
        form = client.get(unescape(link.group(1)))
        assert '<option value="rooms" selected>' in form.content.decode()
        assert "!a:x&amp;y\n!b:x" in form.content.decode()


@pytest.mark.parametrize("arguments", [["days", 7], "days", 7, None])
def test_arguments_that_are_no_object_are_told_and_not_carried_out(staff, dry, arguments):
    """Nothing of ours writes such a row; another service may."""
    Job.objects.filter(pk=dry.pk).update(arguments=Value(arguments, JSONField()), before=["due"])
    client = staff("carry_out_job")
    for method in (client.get, client.post):
        page = method(f"{LIST}{dry.pk}/carry-out/")
        assert (page.status_code, "are no JSON object" in page.content.decode()) == (200, True)
    assert client.get(LIST).status_code == client.get(f"{LIST}{dry.pk}/change/").status_code == 200
    assert Job.objects.count() == 1


@pytest.mark.parametrize("method", ["get", "post"])
def test_nobody_queues_carries_out_or_cancels_without_the_permission(staff, job, dry, method):
    others = {QUEUE: "queue_job", CENSOR: "queue_job", f"{LIST}{dry.pk}/carry-out/": "carry_out_job",
              f"{LIST}{job.pk}/cancel/": "cancel_job"}  # fmt: skip
    client = staff()
    for address, needed in others.items():
        rest = Permission.objects.filter(codename__in={"queue_job", "carry_out_job", "cancel_job"} - {needed})
        user = User.objects.get()
        user.user_permissions.set(rest)
        assert getattr(client, method)(address).status_code == 403, address
    job.refresh_from_db()
    assert job.state == JobState.QUEUED
    assert Job.objects.count() == 2
    assert not LogEntry.objects.exists()


def test_what_is_over_is_not_cancelled_and_leaves_no_trace(staff, dry):
    client = staff("cancel_job")
    assert "there is nothing to cancel" in client.get(f"{LIST}{dry.pk}/cancel/").content.decode()
    client.post(f"{LIST}{dry.pk}/cancel/")
    assert not LogEntry.objects.exists()


def test_a_form_of_another_site_does_nothing(staff, dry):
    staff("carry_out_job", "cancel_job", "queue_job")
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get())
    for address in (CENSOR, f"{LIST}{dry.pk}/carry-out/", f"{LIST}{dry.pk}/cancel/"):
        assert strict.post(address, {"days": "1"}).status_code == 403
    assert Job.objects.count() == 1


def test_a_job_that_is_not_there_is_not_found(staff):
    client = staff("cancel_job", "carry_out_job", "queue_job")
    for address in (f"{LIST}4711/cancel/", f"{LIST}4711/carry-out/", f"{QUEUE}?kind=no+such"):
        assert client.get(address).status_code == client.post(address).status_code == 404


def test_those_who_are_no_staff_see_the_login(client, job):
    client.force_login(User.objects.create_user("eve"))
    for page in (LIST, QUEUE, f"{LIST}{job.pk}/cancel/", f"{LIST}{job.pk}/carry-out/"):
        assert client.get(page).status_code == 302


def test_a_jobs_page_shows_its_figures_side_by_side_and_as_text(staff, job):
    figures = {"rows": 1200, "<b>rooms</b>": 3, "gone": None}
    Job.objects.filter(pk=job.pk).update(state="done", before=figures, after={**figures, "rows": 200, "new": [1]})
    page = " ".join(staff().get(f"{LIST}{job.pk}/change/").content.decode().split())
    assert "1,200</td>" in page and "200</td>" in page and "-1,000</td>" in page
    assert "&lt;b&gt;rooms&lt;/b&gt;" in page and "<b>rooms</b>" not in page
    assert "[1]</td>" in page


def test_a_jobs_page_shows_the_stages_of_spark_in_words(staff, job):
    stages = [{"name": "<b>rooms</b>", "tasks": 12, "shuffled_bytes": 2048, "skew": 1.5}, {"name": "load", "tasks": 1}]
    Job.objects.filter(pk=job.pk).update(state="done", summary={"rooms": 3, "spark": stages})
    page = staff().get(f"{LIST}{job.pk}/change/").content.decode()
    told = "&lt;b&gt;rooms&lt;/b&gt;: 12 tasks, 2.0 kB shuffled, the longest task took 1.5 times the median<br>load: 1 task"
    assert told in page


def test_a_jobs_page_without_figures_says_so(staff, job):
    assert "None were noted." in staff().get(f"{LIST}{job.pk}/change/").content.decode()


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.RUNNING])
def test_a_job_that_failed_was_cancelled_or_killed_is_resumed_with_the_same_arguments(staff, job, state):
    """A job that is called running, and that no process works on, was killed."""
    Job.objects.filter(pk=job.pk).update(
        state=state, error="<b>full</b>", cancel_asked_by="eve", attempts=3, finished_at=Now()
    )
    client = staff("carry_out_job")
    address = f"{LIST}{job.pk}/resume/"
    assert address in client.get(f"{LIST}{job.pk}/change/").content.decode()
    page = client.get(address).content.decode()
    assert "&lt;b&gt;full" in page
    assert "Resume it" in page
    job.refresh_from_db()
    assert job.state == state, "looking does nothing"
    assert client.post(address).status_code == 302
    again = Job.objects.get()
    assert (again.pk, again.state, again.error, again.cancel_asked_by) == (job.pk, JobState.QUEUED, "", "")
    assert (again.arguments, again.attempts, again.finished_at) == (job.arguments, 0, None)
    assert LogEntry.objects.get().change_message == "Resumed: censor"


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.DONE])
def test_a_job_that_waits_or_is_done_is_not_resumed(staff, job, state):
    Job.objects.filter(pk=job.pk).update(state=state)
    client = staff("carry_out_job")
    assert "Resume it" not in client.get(f"{LIST}{job.pk}/resume/").content.decode()
    assert "can be resumed" in client.post(f"{LIST}{job.pk}/resume/", follow=True).content.decode()
    job.refresh_from_db()
    assert job.state == state
    assert not LogEntry.objects.exists()


def test_a_job_that_a_process_works_on_is_not_resumed(staff, job):
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING)
    with hold_lock("default") as lock:
        assert lock.acquire(job.pk)
        staff("carry_out_job").post(f"{LIST}{job.pk}/resume/")
    job.refresh_from_db()
    assert job.state == JobState.RUNNING


def test_what_only_a_command_may_do_is_not_resumed_by_the_queue(staff):
    """A command exports to any folder. A job of the queue may write below ``exports`` only."""
    job = Job.objects.create(kind="export", state=JobState.FAILED, arguments={"to": "/etc"}, asked_by="root")
    page = staff("carry_out_job").post(f"{LIST}{job.pk}/resume/", follow=True).content.decode()
    assert "must be the name of a folder" in page
    job.refresh_from_db()
    assert job.state == JobState.FAILED


def test_nobody_resumes_without_the_permission(staff, job):
    assert staff("queue_job", "cancel_job").post(f"{LIST}{job.pk}/resume/").status_code == 403


def test_a_room_is_found_for_the_fields_of_a_form_by_those_who_may_see_rooms(staff):
    room_id = talked_room(1).room_id
    client = staff("queue_job")
    found = f"{LIST}rooms/?q={quote(room_id, safe='')}"
    assert client.get(found).status_code == 403
    User.objects.get().user_permissions.add(Permission.objects.get(codename="view_room"))
    assert [room["id"] for room in client.get(found).json()["rooms"]] == [room_id]
    RoomSummary.objects.filter(room_id=room_id).update(words="the kitchen", name="The kitchen")
    assert client.get(f"{LIST}rooms/?q=KITCH").json()["rooms"] == [{"id": room_id, "text": "The kitchen"}]
    for text in ("", "!nothing:here", "%00"):
        assert client.get(f"{LIST}rooms/?q={text}").json() == {"rooms": []}


def test_the_page_of_a_room_leads_to_jobs_about_it(staff):
    room_id = talked_room(1).room_id
    client = staff("view_room")
    assert "Purge the room" not in client.get(room_url(room_id)).content.decode()
    User.objects.get().user_permissions.add(Permission.objects.get(codename="queue_job"))
    page = client.get(room_url(room_id)).content.decode()
    for kind in (
        "resync&what=rooms&rooms=",
        "export&rooms=",
        "archive&room=",
        "purge%20history&room=",
        "purge%20room&room=",
    ):
        (link,) = re.findall(rf'href="({re.escape(QUEUE)}\?kind={re.escape(kind)}[^"]*)"', unescape(page))
        assert room_id in unescape(client.get(link).content.decode()), "the form has it"
