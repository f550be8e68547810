"""Health over HTTP: which part is not well, to whom how much is told, and an answer in time whatever the database does."""

from __future__ import annotations

import json
import shutil
import threading
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.migrations.loader import MigrationLoader

from replsite import health, health_views
from replsite.health import Part, Report
from replsite.http.deadline import Deadline, NoAnswer
from replsite.live_rows.reading import read_snapshot
from replsite.live_rows.verdicts import site_health
from replsite.postgres.errors import DiskFull, StartFailed
from replsite.status.words import Problem, Severity, Verdict
from streams.replication.server import broadcaster
from tests.support.snapshots import a_reader, a_snapshot, a_stream, a_writer
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db
PATHS = ("/health", "/health/live", "/health/ready")
SECRETS = ("web-3", "<b>peer</b>", "postgres", "10.1.2.3", "hunter2", "815")


def troubled():
    """A site with trouble whose sentences say much."""
    blocked = Verdict("blocked", Severity.WRONG, "Transaction 815 of 10.1.2.3 holds it.")
    stuck = Verdict("stuck", Severity.WRONG, "Restart <b>peer</b>.")
    problems = (Problem("Writer web-3 of events", blocked), Problem("Connection <b>peer</b> on events", stuck))
    return a_snapshot(a_stream(a_writer("web-3")), a_reader("<b>peer</b>"), health=site_health(problems, ""))


@pytest.fixture
def trouble(monkeypatch):
    monkeypatch.setattr(health.summary, "__defaults__", (troubled,))


@pytest.fixture
def away(monkeypatch, settings):
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", "django.db.backends.postgresql")

    class Away:
        def cursor(self):
            raise OperationalError('FATAL: password authentication failed for user "postgres" at 10.1.2.3 (hunter2)')

    monkeypatch.setattr(health, "connections", {"default": Away()})


@pytest.fixture
def embedded(monkeypatch, settings, tmp_path):
    """A site whose embedded server fails with the given cause."""

    def fail(cause):
        class Embedded:
            def cursor(self):
                raise OperationalError(str(cause)) from cause

        settings.REPLSITE_DATA_DIR = tmp_path
        monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", health.EMBEDDED)
        monkeypatch.setattr(health, "connections", {"default": Embedded()})
        return health.ready()

    return fail


# --- who is told what ---------------------------------------------------------------------------------------------------


def test_a_full_disk_under_the_embedded_server_is_named_and_nobody_is_sent_to_database_url(embedded, tmp_path):
    report = embedded(DiskFull("The embedded PostgreSQL did not start"))
    log = tmp_path / "postgres" / "postgres.log"
    assert report.sentence == (
        f"database: The disk of {tmp_path / 'postgres'} is full, so the embedded server cannot run. Free space there; it "
        f"starts again by itself. Its log: {log}."
    )
    public = health_views.without_details(report).sentence
    assert public.startswith("database: The disk of the embedded server is full. Free space there; it starts again")
    assert str(tmp_path) not in public


def test_an_embedded_server_that_cannot_start_is_told_with_the_place_of_its_log(embedded, tmp_path):
    report = embedded(StartFailed("shared_buffers is wrong\nmore of the log"))
    log = tmp_path / "postgres" / "postgres.log"
    assert report.sentence == (
        "database: The embedded server could not start, or does not answer (shared_buffers is wrong). Mend what its log names: "
        f"{log}. It starts again by itself."
    )
    public = health_views.without_details(report).sentence
    assert "postgres/postgres.log in the data folder" in public
    assert str(tmp_path) not in public and "DATABASE_URL" not in public


def test_anybody_is_told_which_group_is_not_well_and_no_names(client, trouble):
    answer = client.get("/health")
    assert answer.status_code == 503
    parts = {part["name"]: part for part in answer.json()["parts"]}
    assert parts["writers"]["sentence"].startswith("1 blocked.")
    assert parts["readers"]["sentence"].startswith("1 stuck.")
    assert not [word for word in SECRETS if word in answer.content.decode()]


def test_staff_are_told_everything(admin_client, trouble):
    text = admin_client.get("/health").content.decode()
    assert "Transaction 815 of 10.1.2.3" in text
    assert "web-3" in text


def test_a_user_who_is_not_staff_is_anybody(client, django_user_model, trouble):
    client.force_login(django_user_model.objects.create_user("ann"))
    assert "web-3" not in client.get("/health").content.decode()


def test_a_cookie_that_is_nobodys_is_anybody(client, trouble):
    client.cookies["sessionid"] = "x" * 32
    assert "web-3" not in client.get("/health").content.decode()


@pytest.mark.parametrize("path", ["/health", "/health/ready"])
def test_the_databases_own_words_are_told_to_nobody_over_http(client, away, path):
    answer = client.get(path)
    assert answer.status_code == 503
    assert answer.json()["parts"][0]["name"] == "database"
    assert not [word for word in SECRETS if word in answer.content.decode()]


def test_the_command_tells_the_databases_own_words(away):
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("health", stdout=out)
    assert ended.value.code == 1
    assert "password authentication failed" in out.getvalue()


# --- HTTP ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_head_answers_like_get_without_a_body(client, path):
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (client.get(path).status_code, b"")
    assert answer["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_nothing_but_get_and_head(client, path, method):
    assert getattr(client, method)(path).status_code == 405


# --- parts --------------------------------------------------------------------------------------------------------------


def part(report: Report, name: str) -> Part:
    return next(part for part in report.parts if part.name == name)


def test_a_disk_that_is_nearly_full_is_told_before_it_keeps_anybody_from_serving(settings, monkeypatch):
    free = shutil.disk_usage(settings.REPLSITE_DATA_DIR).free
    settings.REPLSITE_DISK_RESERVE_BYTES = free * 2
    assert not part(health.summary(a_snapshot), "disk").well
    assert "Remove old archives" in part(health.summary(a_snapshot), "disk").sentence
    assert part(health.ready(a_snapshot), "disk").well
    settings.REPLSITE_DISK_RESERVE_BYTES = free * 20
    assert not health.ready(a_snapshot).well


def test_a_full_disk_is_a_problem_of_the_snapshot_and_told_once(settings):
    settings.REPLSITE_DISK_RESERVE_BYTES = shutil.disk_usage(settings.REPLSITE_DATA_DIR).free * 2
    snapshot = read_snapshot()
    assert snapshot.health.word == "wrong"
    (problem,) = (one for one in snapshot.health.problems if one.verdict.word == "full")
    assert problem.verdict.actions == ("archives",)
    report = health.summary(lambda: snapshot)
    assert [part.name for part in report.parts if part.word == "full"] == ["disk"]
    assert report.sentence.startswith("disk: ")
    settings.REPLSITE_DISK_RESERVE_BYTES = 0
    assert read_snapshot().health.word == "well"


def test_a_data_directory_that_is_not_made_yet_is_on_the_disk_of_its_parent(settings, tmp_path):
    settings.REPLSITE_DATA_DIR = Path(tmp_path) / "not" / "yet"
    assert part(health.ready(a_snapshot), "disk").well


@pytest.mark.parametrize(("seconds", "word"), [(None, None), (0.5, ""), (31.0, "gone"), (float("inf"), "gone")])
def test_a_broadcaster_that_is_gone_makes_its_process_unfit(monkeypatch, seconds, word):
    monkeypatch.setattr(health, "silent_seconds", lambda: seconds)
    report = health.ready(a_snapshot)
    assert [one.word for one in report.parts if one.name == "broadcaster"] == ([] if word is None else [word])
    assert report.well == (word != "gone")


async def test_a_broadcaster_knows_that_its_work_has_ended():
    made = broadcaster.Broadcaster()
    assert made.silent_seconds is None
    made._tasks = [broadcaster.asyncio.ensure_future(broadcaster.asyncio.sleep(60))]
    assert made.silent_seconds < 30
    made._tasks[0].cancel()
    await broadcaster.asyncio.gather(*made._tasks, return_exceptions=True)
    assert made.silent_seconds == float("inf")


def test_a_sequence_behind_its_table_is_told(monkeypatch):
    behind = Problem("Stream events", Verdict("sequence behind", Severity.WRONG, "manage.py check_streams --repair"))
    report = health.summary(lambda: a_snapshot(a_stream(), health=site_health((behind,), "")))
    assert not part(report, "Stream events").well
    assert health_views.without_details(report).sentence.startswith("streams: 1 sequence behind.")


def test_handlers_that_are_gone_are_told():
    gone = Problem("Follower mailer on events", Verdict("gone", Severity.WRONG, "Start it."))
    report = health.summary(lambda: a_snapshot(health=site_health((gone,), "")))
    assert health_views.without_details(report).sentence.startswith("readers: 1 gone.")


# --- in time --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hanging(monkeypatch):
    """A database that takes connections and answers nothing, until let go."""
    let_go, waited = threading.Event(), []

    class Hangs:
        def cursor(self):
            waited.append(let_go.wait(4 * DEADLINE_SECONDS))
            raise OperationalError("gone")

    monkeypatch.setattr(health, "connections", {"default": Hangs()})
    for probe in (health_views._READY, health_views._SUMMARY):
        monkeypatch.setattr(probe._deadline, "_seconds", 0.3)
    yield waited
    let_go.set()


@pytest.mark.parametrize("path", ["/health", "/health/ready"])
def test_a_database_that_hangs_does_not_hang_the_answer(client, hanging, path):
    answer = client.get(path)
    assert not hanging, "it was answered before the database was"
    assert answer.status_code == 503
    assert answer.json()["parts"][0]["name"] == "database"


def test_staff_get_an_answer_from_a_site_whose_database_hangs(admin_client, hanging):
    assert admin_client.get("/health").status_code == 503


def test_however_many_ask_one_thread_waits(client, hanging):
    for _ in range(5):
        client.get("/health/ready")
    assert [thread.name for thread in threading.enumerate()].count("replsite-ready") == 1


def test_the_command_gives_up_in_time(hanging):
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("health", "--json", "--timeout", "0.3", stdout=out)
    assert ended.value.code == 1
    assert "has not answered" in json.loads(out.getvalue())["sentence"]


def test_an_answer_that_comes_late_is_not_given_to_who_asks_later():
    answers = iter("ab")
    go = threading.Event()

    def slow():
        go.wait(DEADLINE_SECONDS)
        return next(answers)

    deadline = Deadline(slow, 0.05, "slow")
    with pytest.raises(NoAnswer):
        deadline.ask()
    go.set()
    deadline._asked.result(DEADLINE_SECONDS)
    deadline._seconds = 60
    assert deadline.ask() == "b"


def test_what_a_question_raises_is_raised():
    def wrong():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Deadline(wrong, 60, "wrong").ask()


# --- migrations -----------------------------------------------------------------------------------------------------


def test_the_names_of_migrations_are_those_that_django_finds():
    assert health._named_migrations() == set(MigrationLoader(connection).disk_migrations)
