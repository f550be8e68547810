"""Page, command, metrics and health never disagree: all of them show the same snapshot."""

from __future__ import annotations

import json
import re
from html import unescape
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.urls import reverse
from prometheus_client.parser import text_string_to_metric_families

from replsite import health
from replsite.dashboard import views
from replsite.live_rows.cells import as_json
from replsite.live_rows.shared import SHARED
from replsite.live_rows.verdicts import Limits, hold_verdict, reader_verdict, site_health
from replsite.management.commands import streams as streams_command
from replsite.metrics import cluster
from replsite.status.words import Problem
from tests.support.snapshots import NOW, a_holder, a_reader, a_snapshot, a_stream, a_writer, on_stream, some_workers

pytestmark = pytest.mark.django_db

LIMITS = Limits()
BLOCKED = hold_verdict(a_holder(70, statement=""), LIMITS)
STUCK = reader_verdict(
    a_reader(heartbeat_seconds=0.0), on_stream(lag_facts=123, lag_seconds=45.0, unmoved_seconds=45.0), LIMITS, NOW
)


@pytest.fixture
def shown(monkeypatch):
    """A snapshot with trouble, wherever a snapshot is looked at."""
    problems = (Problem("Stream events", BLOCKED), Problem("Follower sender on events", STUCK))
    snapshot = a_snapshot(
        a_stream(
            a_writer("web-3", position=777, status=BLOCKED),
            linear_position=777,
            holders=(a_holder(70, status=BLOCKED),),
        ),
        a_reader("sender", on_stream(position=555, lag_facts=123, lag_seconds=45.0, status=STUCK)),
        health=site_health(problems, ""),
        workers=some_workers(),
    )
    monkeypatch.setattr(SHARED, "get", lambda: snapshot)
    monkeypatch.setattr(cluster, "_COLLECTOR", cluster.SnapshotCollector(lambda: snapshot))
    monkeypatch.setattr(health, "SHARED", SHARED)
    monkeypatch.setattr(views, "SHARED", SHARED)
    monkeypatch.setattr(streams_command, "read_current_snapshot", lambda history: snapshot)
    return snapshot


def command(*arguments):
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("streams", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue(), ended.value.code


def scraped(client):
    text = client.get("/metrics").content.decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {(s.name, *sorted(s.labels.values())): s.value for s in samples if s.name.startswith("replsite")}


def test_all_tell_the_same_lag(shown, admin_client):
    assert "123 facts" in admin_client.get(reverse("live")).content.decode()
    assert "123 facts (45 s)" in command()[0]
    found = scraped(admin_client)
    assert found["replsite_reader_lag_facts", "events", "sender"] == 123
    assert found["replsite_reader_lag_seconds", "events", "sender"] == 45


def test_all_tell_the_same_position(shown, admin_client):
    assert ">777<" in admin_client.get(reverse("live")).content.decode()
    assert "777" in command()[0]
    assert scraped(admin_client)["replsite_stream_position", "events", "web-3"] == 777


def test_all_tell_the_same_status(shown, admin_client):
    ((key, rows),) = admin_client.get(reverse("live-data")).json()["streams"]
    assert (key, rows[0][0]) == ("events", "")
    assert '<td class="live-status"><a class="live-text" href="/admin/words/#writer-blocked">blocked</a>' in rows[0][1]
    assert "blocked" in command()[0]
    found = scraped(admin_client)
    assert found["replsite_writer_status", "blocked", "events", "web-3"] == 1
    assert found["replsite_reader_status", "events", "sender", "stuck"] == 1


def test_all_tell_the_same_of_workers(shown, admin_client):
    html, plain, found = admin_client.get(reverse("live")).content.decode(), command()[0], scraped(admin_client)
    for number, text in ((321, "321"), (4_711, "4,711"), (654, "654"), (19, "19")):
        assert text in html, text
        assert text in plain, text
        assert number in found.values()
    assert "no client certificate" in html
    assert "no client certificate" in plain


def test_all_say_the_same_about_the_whole(shown, admin_client):
    sentence = shown.health.sentence
    assert sentence.startswith("Stream events is blocked: Session 81 has appended")
    _, _, state = admin_client.get(reverse("live-data")).json()["state"].partition('id="live-health-sentence">')
    assert unescape(re.sub("<button.*?</button>|<[^>]*>", "", state)).startswith(sentence)
    assert sentence in command()[0]
    assert health.summary(lambda: shown).parts[-1].sentence.startswith("stuck: ")


def test_trouble_is_exit_status_1_and_503(shown, admin_client, monkeypatch):
    assert command()[1] == command("--json")[1] == 1
    monkeypatch.setattr(health.summary, "__defaults__", (lambda: shown,))
    assert admin_client.get("/health").status_code == 503
    with pytest.raises(SystemExit) as ended:
        call_command("health", stdout=StringIO())
    assert ended.value.code == 1


def test_json_of_the_command_is_the_snapshot(shown):
    assert json.loads(command("--json")[0]) == json.loads(json.dumps(as_json(shown)))


def test_ready_does_not_depend_on_what_the_streams_do(shown):
    assert health.ready(lambda: shown).well


# --- health by itself ---------------------------------------------------------------------------------------------------


def away():
    raise OperationalError("connection refused\nand more")


def test_all_well_is_200_everywhere(client):
    for path in ("/health", "/health/live", "/health/ready"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["well"]) == (200, True), answer.json()


def test_live_asks_nothing(client, django_assert_num_queries):
    with django_assert_num_queries(0):
        client.get("/health/live")


def test_positions_that_cannot_be_read_say_what_to_do():
    report = health.ready(away)
    assert not report.well
    assert report.sentence.startswith("positions: They cannot be read")


def test_database_away_is_one_part_with_the_cure(monkeypatch, settings):
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", "django.db.backends.postgresql")

    class Away:
        def cursor(self):
            away()

    monkeypatch.setattr(health, "connections", {"default": Away()})
    report = health.ready()
    assert [(part.name, part.well) for part in report.parts] == [("database", False), ("disk", True)]
    assert (
        report.sentence
        == "database: It cannot be used (connection refused). Start the server, or correct DATABASES (or DATABASE_URL)."
    )


def test_missing_migrations_say_how_to_apply_them():
    recorder = MigrationRecorder(connection)
    app, newest = max(key for key in recorder.applied_migrations() if key[0] == "streams")
    recorder.record_unapplied(app, newest)
    try:
        report = health.ready()
    finally:
        recorder.record_applied(app, newest)
    assert f"{app}.{newest}" in report.sentence
    assert "manage.py migrate" in report.sentence


def test_health_command_prints_parts_and_json(capsys):
    out = StringIO()
    call_command("health", stdout=out)
    assert "database: PostgreSQL" in out.getvalue()
    out = StringIO()
    call_command("health", "--json", stdout=out)
    assert json.loads(out.getvalue())["well"] is True
