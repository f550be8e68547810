"""The live page over HTTP."""

from __future__ import annotations

import csv
import gzip
import html
import json
import re
from dataclasses import replace
from io import StringIO

import pytest
from django.contrib.auth.models import Permission
from django.contrib.sessions.models import Session
from django.db import OperationalError, connection
from django.urls import reverse

from events.admin.links import room_url
from replsite.dashboard import views
from replsite.dashboard.fragments import _RIGHTS, render
from replsite.dashboard.page import TABLES, live_page_data
from replsite.live_rows.readers import FINE_READERS_SHOWN
from tests.support.snapshots import a_reader, a_snapshot, a_stream, a_writer, ago, some_storage
from tests.support.writing import append, wait_for_linear

pytestmark = pytest.mark.django_db
HOSTILE = "<img src=x onerror=alert(1)>\"'&"


@pytest.fixture
def shown(monkeypatch):
    """What the page shows."""
    snapshot = a_snapshot(a_stream(a_writer("web-1")), a_reader(HOSTILE))
    monkeypatch.setattr(views.SHARED, "get", lambda: snapshot)
    return snapshot


def test_first_rendering_needs_no_javascript(admin_client, shown):
    page = admin_client.get(reverse("live")).content.decode()
    for words in ("All is well.", "web-1", "writing", "linear position", "5.0 s ago", "04:00:00 UTC"):
        assert words in page


def test_page_brings_no_inline_script_of_its_own(admin_client, shown):
    page = admin_client.get(reverse("live")).content.decode()
    own = page[
        page.index('id="live"') : page.index("</main>") if "</main>" in page else page.index('id="live-readers"')
    ]
    assert "<script" not in own
    assert " on" not in [part[:3] for part in own.split("=")]


def test_the_data_has_the_rows_of_the_page_and_their_time(admin_client, shown):
    answer = admin_client.get(reverse("live-data"), headers={"accept-encoding": "gzip"})
    assert (answer["As-Of"], answer["Cache-Control"]) == (shown.as_of.isoformat(), "no-store")
    found = json.loads(gzip.decompress(answer.content))
    assert found == admin_client.get(reverse("live-data")).json(), "for whoever takes no gzip"
    parts = render(live_page_data(shown), frozenset(_RIGHTS))
    whole = {"storage_at": parts.storage_at, "state": parts.state, "summary": parts.summary, **parts.tables}
    assert found == json.loads(json.dumps(whole))


def test_who_shows_the_page_already_is_told_its_time_only(admin_client, monkeypatch):
    snapshot = a_snapshot(a_stream(a_writer()))
    monkeypatch.setattr(views.SHARED, "get", lambda: snapshot)
    tag = admin_client.get(reverse("live-data"))["ETag"]
    later = replace(snapshot, as_of=ago(-1))
    monkeypatch.setattr(views.SHARED, "get", lambda: later)
    answer = admin_client.get(reverse("live-data"), headers={"if-none-match": tag, "accept-encoding": "gzip"})
    assert (answer.status_code, answer.content, answer["ETag"]) == (304, b"", tag)
    assert answer["As-Of"] == later.as_of.isoformat()
    assert "Content-Encoding" not in answer
    moved = a_snapshot(a_stream(a_writer(position=11)))
    monkeypatch.setattr(views.SHARED, "get", lambda: moved)
    answer = admin_client.get(reverse("live-data"), headers={"if-none-match": tag})
    assert (answer.status_code, answer["ETag"] == tag) == (200, False)


def test_who_is_no_staff_any_more_or_logs_out_is_told_at_once(client, django_user_model, shown):
    user = django_user_model.objects.create_user("mate", is_staff=True)
    for shut_out in (
        lambda: django_user_model.objects.update(is_staff=False),
        lambda: django_user_model.objects.update(is_active=False),
        lambda: Session.objects.all().delete(),  # logged out in another tab
    ):
        django_user_model.objects.update(is_staff=True, is_active=True)
        client.force_login(user)
        tag = client.get(reverse("live-data"))["ETag"]
        shut_out()
        assert client.get(reverse("live-data"), headers={"if-none-match": tag}).status_code == 403


def test_root_leads_to_the_live_page(client):
    assert client.get("/").headers["Location"] == reverse("live")


@pytest.mark.parametrize("staff", [None, False])
def test_others_are_refused(client, django_user_model, shown, staff):
    if staff is not None:
        client.force_login(django_user_model.objects.create_user("u", password="x", is_staff=staff))
    assert client.get(reverse("live")).headers["Location"].startswith(reverse("admin:login"))
    answer = client.get(reverse("live-data"))
    assert answer.status_code == 403
    assert list(answer.json()) == ["error"]


def test_nothing_is_posted_to_the_live_page(admin_client, shown):
    assert admin_client.post(reverse("live")).status_code == 405
    assert admin_client.post(reverse("live-data")).status_code == 405


def test_database_away_is_said_to_the_poller(admin_client, monkeypatch):
    def away():
        raise OperationalError("gone")

    monkeypatch.setattr(views.SHARED, "get", away)
    answer = admin_client.get(reverse("live-data"))
    assert (answer.status_code, answer.json()) == (503, {"error": "The database cannot be read."})


@pytest.fixture
def stored(shown, monkeypatch):
    """What the page shows, with storage."""
    snapshot = replace(shown, storage=some_storage())
    monkeypatch.setattr(views.SHARED, "get", lambda: snapshot)
    return snapshot


def test_storage_is_shown_with_its_own_time(admin_client, stored):
    page = admin_client.get(reverse("live")).content.decode()
    for words in ("events_event", "400 groups", "7 unreferenced", "03:59:40 UTC", "manage.py purge orphans"):
        assert words in page


def test_rooms_are_shown_to_those_who_may_see_them_only(client, django_user_model, stored):
    user = django_user_model.objects.create_user("mate", is_staff=True)
    client.force_login(user)
    assert "!a:x" not in client.get(reverse("live")).content.decode()
    assert "!a:x" not in client.get(reverse("live-data")).content.decode()
    tag = client.get(reverse("live-data"))["ETag"]
    user.user_permissions.add(Permission.objects.get(codename="view_room"))
    assert "!a:x" in client.get(reverse("live")).content.decode()
    answer = client.get(reverse("live-data"), headers={"if-none-match": tag})  # a page that is open follows, too
    assert [key for key, _ in answer.json()["rooms"]] == ["!a:x", "!<b>:x"]
    for page in (answer, client.get(reverse("live"))):
        assert {room_url("!a:x"), room_url("!<b>:x")} <= set(
            re.findall(r"/admin/events/room/[^\"\\]*", page.content.decode())
        )


def test_page_says_what_the_viewer_may_do(client, django_user_model, shown):
    user = django_user_model.objects.create_user("mate", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="disconnect_reader"))
    client.force_login(user)
    page = client.get(reverse("live")).content.decode()
    assert 'data-disconnect-page="/admin/actions/disconnect/?name=~"' in page
    assert "data-end-page" not in page


def test_rows_lead_to_their_objects(admin_client, monkeypatch):
    snapshot = a_snapshot(a_stream(a_writer("web-1", row_id=77)), a_reader("r", key="a/b?c"))
    monkeypatch.setattr(views.SHARED, "get", lambda: snapshot)
    page = admin_client.get(reverse("live")).content.decode()
    assert reverse("admin:streams_streamposition_change", args=["77"]) in page
    assert reverse("admin:streams_reader_change", args=["a_2Fb_3Fc"]) in page


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("path", "kind"), [("/admin/live/", "text/html"), ("/admin/live/data/", "application/json")])
def test_a_stream_without_its_table_is_named_with_what_to_do(admin_client, path, kind):
    """A declared stream whose migration was not run yet: no page may answer 500 for it."""
    wait_for_linear(append()[-1])
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE streams_cacheinvalidation RENAME TO elsewhere")
    try:
        views.SHARED.__init__()
        answer = admin_client.get(path, headers={"accept": kind})
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO streams_cacheinvalidation")
    assert answer.status_code == 503
    said = html.unescape(answer.content.decode())
    assert "streams_cacheinvalidation" in said
    assert "put it back" in said, "all migrations are applied here, so this is what helps"
    assert admin_client.get(path).status_code == 200


def test_each_table_is_served_as_csv(admin_client, shown):
    for name in TABLES:
        answer = admin_client.get(reverse("live-csv", args=[name]))
        assert answer["Content-Type"] == "text/csv; charset=utf-8"
    titles, *rows = csv.reader(StringIO(admin_client.get(reverse("live-csv", args=["streams"])).content.decode()))
    assert titles[:3] == ["group", "row", "Stream and writer"]
    assert [row[:2] for row in rows] == [["events", ""], ["events", "web-1"]]
    assert admin_client.get("/admin/live/nothing.csv").status_code == 404


def test_the_csv_of_readers_has_those_that_the_page_leaves_out(admin_client, monkeypatch):
    snapshot = a_snapshot(a_stream(a_writer()), *(a_reader(f"f{n}") for n in range(FINE_READERS_SHOWN + 7)))
    monkeypatch.setattr(views.SHARED, "get", lambda: snapshot)
    rows = admin_client.get(reverse("live-csv", args=["readers"])).content.decode().splitlines()
    assert len(rows) == 1 + 2 * (FINE_READERS_SHOWN + 7), "a line for each reader, and one for its stream"


def test_the_page_of_status_words_explains_each(admin_client):
    page = admin_client.get(reverse("status-words")).content.decode()
    assert 'id="writer-blocked"' in page
    assert "<code>streams abort</code>" in page
