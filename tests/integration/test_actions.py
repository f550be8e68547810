"""Actions of operators in the admin: what they say, what they do, who may, and what the log keeps."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from datetime import timedelta
from io import StringIO

import psycopg2
import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.db.models.functions import Now

from streams.db import driver
from streams.models import ParkedFact, Reader, StoredCursor, StreamPosition
from streams.testing import as_instance
from streams.writing import terminate
from tests.support.waiting import wait_until
from tests.support.wire_client import positioned, start_replication
from tests.support.writing import append, ids, stored, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)
DISCONNECT, RETIRE, END = "/admin/actions/disconnect/", "/admin/actions/retire/", "/admin/actions/end/"
FORGET = "/admin/actions/forget/"


@pytest.fixture
def staff(client):
    """``staff("retire_writer")``: a client of a user who may do that."""

    def log_in(*permissions):
        user = User.objects.create_user("ann", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client.force_login(user)
        return client

    return log_in


def text(page) -> str:
    return page.content.decode()


def test_a_connection_is_ended_by_its_server_with_a_reason(staff, start_manage):
    client = staff("disconnect_reader")
    port = start_replication(start_manage)
    with positioned(port, "unwanted") as unwanted, positioned(port, "other") as other:
        reader = wait_until(lambda: Reader.objects.filter(name="unwanted").first())
        address = f"{DISCONNECT}?name={reader.key}"
        assert "unwanted" in text(client.get(address))
        assert Reader.objects.get(pk=reader.pk).disconnect_asked_by == "", "looking does nothing"
        assert client.post(address).status_code == 302
        assert unwanted.read_to_end()[-1] == "ERROR disconnected by an operator"
        wait_until(lambda: Reader.objects.get(pk=reader.pk).close_reason == "disconnected")
        append()
        other.read_until("RDATA caches")
    assert "disconnected" in LogEntry.objects.get().change_message


def test_what_is_no_open_connection_cannot_be_disconnected(staff):
    Reader.objects.create(key="k", name="a follower", kind="follower")
    client = staff("disconnect_reader")
    page = client.get(f"{DISCONNECT}?name=k")
    assert "Only a connection" in text(page)
    assert "Disconnect it" not in text(page)
    client.post(f"{DISCONNECT}?name=k")
    assert Reader.objects.get().disconnect_asked_by == ""
    assert not LogEntry.objects.exists()


def test_a_living_writer_is_asked_to_leave(staff):
    append()
    client = staff("retire_writer")
    assert "alive" in text(client.get(f"{RETIRE}?name=master"))
    assert client.post(f"{RETIRE}?name=master").status_code == 302
    wait_until(lambda: StreamPosition.objects.get(instance_name="master").state == "retired")
    assert "asked to leave caches" in LogEntry.objects.get().change_message


def test_a_dead_writer_is_proven_dead_and_retired(staff, start_manage, run_manage):
    run_manage("append", "caches", "--count", "1", "--instance", "other")
    StreamPosition.objects.filter(instance_name="other").update(state="active")
    client = staff("retire_writer")
    assert "gone" in text(client.get(f"{RETIRE}?name=other"))
    client.post(f"{RETIRE}?name=other")
    assert StreamPosition.objects.get(instance_name="other").state == "retired"
    assert "is retired already" in text(client.get(f"{RETIRE}?name=other"))


def test_what_a_writer_holds_open_is_named_and_ended(staff, monkeypatch):
    monkeypatch.setattr(terminate, "YOUNG_SECONDS", 0.0)
    before = append()
    begun, ended = threading.Event(), threading.Event()

    def hold():
        try:
            with transaction.atomic():
                append()
                begun.set()
                ended.wait(30)
        except DatabaseError:
            pass
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert begun.wait(20)
        client = staff("end_writer")
        page = text(client.get(f"{END}?name=master"))
        assert "transaction" in page
        assert f"process {os.getpid()}" in page
        assert "open since" in page
        assert client.post(f"{END}?name=master").status_code == 302
    finally:
        ended.set()
        thread.join(30)
    assert ids() == before, "it was rolled back"
    later = append()
    wait_for_linear(later[0], 20)
    assert "rolled back" in LogEntry.objects.get().change_message


def test_a_writer_that_holds_nothing_is_left_alone(staff):
    append()
    client = staff("end_writer")
    assert "holds nothing back" in text(client.get(f"{END}?name=master"))
    client.post(f"{END}?name=master")
    assert stored()["master"]
    assert not LogEntry.objects.exists()


def test_pages_of_readers_and_writers_lead_to_their_actions(staff):
    append()
    reader = Reader.objects.create(key="k", name="worker", kind="connection")
    client = staff("view_reader", "view_streamposition", "disconnect_reader", "retire_writer", "end_writer")
    assert f"{DISCONNECT}?name=k" in text(client.get(f"/admin/streams/reader/{reader.pk}/change/"))
    page = text(client.get(f"/admin/streams/streamposition/{StreamPosition.objects.get().pk}/change/"))
    assert f"{RETIRE}?name=master" in page
    assert f"{END}?name=master" in page


@pytest.mark.parametrize("address", [DISCONNECT, FORGET, RETIRE, END])
@pytest.mark.parametrize("query", ["", "?name=nobody", "?name=%00"])
def test_whom_nobody_knows_is_not_found(staff, address, query):
    client = staff("disconnect_reader", "forget_reader", "retire_writer", "end_writer")
    assert client.get(address + query).status_code == 404
    assert client.post(address + query).status_code == 404


@pytest.mark.parametrize("address", [DISCONNECT, FORGET, RETIRE, END])
def test_nobody_acts_without_the_permission(staff, client, address):
    with as_instance("w"):
        append()
    assert client.post(f"{address}?name=w").status_code == 302, "to the login"
    for method in ("get", "post"):
        assert getattr(staff() if method == "get" else client, method)(f"{address}?name=w").status_code == 403
    assert not LogEntry.objects.exists()


def test_a_reader_is_forgotten_with_its_cursors_and_no_other(staff):
    for name in ("billing", "mail"):
        StoredCursor.objects.create(
            reader=name, stream="caches", base=7, error="ValueError: <b>no</b>" * (name == "billing")
        )
    client = staff("forget_reader", "view_storedcursor")
    address = f"{FORGET}?name=billing"
    assert address in text(client.get(f"/admin/streams/storedcursor/{StoredCursor.objects.first().pk}/change/"))
    page = text(client.get(address))
    assert "caches at 7" in page
    assert "ValueError: &lt;b&gt;no" in page
    assert StoredCursor.objects.count() == 2, "looking does nothing"
    assert client.post(address).status_code == 302
    assert [cursor.reader for cursor in StoredCursor.objects.all()] == ["mail"]
    assert "billing is forgotten" in LogEntry.objects.get().change_message


def test_a_reader_with_parked_facts_is_not_forgotten(staff):
    StoredCursor.objects.create(reader="billing", stream="caches", base=7)
    ParkedFact.objects.create(reader="billing", stream="caches", token=5, rows=[], error="", traceback="", attempts=1)
    page = staff("forget_reader").post(f"{FORGET}?name=billing", follow=True)
    assert "manage.py parked retry billing" in text(page)
    assert StoredCursor.objects.count() == 1


def test_a_form_of_another_site_does_nothing(staff):
    from django.test import Client

    append()
    user = staff("retire_writer").session["_auth_user_id"]
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(pk=user))
    assert strict.post(f"{RETIRE}?name=master").status_code == 403
    assert StreamPosition.objects.get(instance_name="master").state == "active"


def test_an_action_that_failed_is_in_the_log_as_well(staff, monkeypatch):
    """A part of it may be done."""
    append()

    def fail(*_):
        raise psycopg2.errors.InsufficientPrivilege("permission denied to terminate process")

    monkeypatch.setattr(terminate, "ask_to_leave", fail)
    page = staff("retire_writer").post(f"{RETIRE}?name=master", follow=True)
    assert page.status_code == 200
    assert "It failed: permission denied" in LogEntry.objects.get().change_message


def test_an_action_says_when_the_database_is_away(staff, monkeypatch):
    append()
    client = staff("retire_writer")

    def away(*_, **__):
        raise psycopg2.OperationalError("connection refused")

    monkeypatch.setattr(driver, "direct_connection", away)
    for method in (client.get, client.post):
        assert method(f"{RETIRE}?name=master").status_code == 503
    assert not LogEntry.objects.exists()


LONG = "a" * 500 + "\u202e\x1b[31m<script>" + "b" * 500


def test_a_name_of_a_kilobyte_with_all_that_is_odd_is_harmless_everywhere(staff, client):
    """On the page, in its data, in the health, in the command's table, in metrics and in the page that disconnects it."""
    odd = "\u202e\x1b[31m<script>alert(1)</script>"
    for key, name in (("k", odd), ("l", LONG)):
        Reader.objects.create(key=key, name=name, kind="connection", address=odd, positions={"caches": {"master": 1}},
                              heartbeat_at=Now() - timedelta(minutes=5))  # fmt: skip
    browser = staff("disconnect_reader")
    table = StringIO()
    with suppress(SystemExit):
        call_command("streams", stdout=table, stderr=StringIO())
    pages = [browser.get(path).content.decode() for path in
             ("/admin/live/", "/admin/live/data/", "/health", "/metrics", f"{DISCONNECT}?name=k", f"{DISCONNECT}?name=l",
              "/admin/history/?stream=caches")]  # fmt: skip
    for text_of in (*pages, table.getvalue()):
        assert "\u202e" not in text_of
        assert "\x1b" not in text_of
        assert "b" * 100 not in text_of, "it is cut"
    for text_of in (pages[0], *pages[4:]):  # those that are HTML
        assert "<script>alert" not in text_of
    assert "script" in pages[0], "and yet it is seen"
    assert "script>" not in pages[3], "but no label of a metric"
