"""Actions of operators in the admin: what they say, what they do, who may, and what the log keeps."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from io import StringIO

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db.backends.postgresql.base import Database
from django.db.backends.postgresql.psycopg_any import errors
from django.db.models.functions import Now

from streams.db import driver
from streams.follow import Handler, handlers_of
from streams.follow import handlers as declared
from streams.follow.lease import hold_name
from streams.holds import end
from streams.models import ParkedFact, Reader, ReaderResync, StoredCursor, StreamPosition
from tests.support.effects import running
from tests.support.waiting import wait_until
from tests.support.wire_client import positioned, start_replication
from tests.support.writing import (
    append,
    held_open,
    ids,
    linear,
    session,
    wait_for_linear,
    writer_waits_for,
)

pytestmark = pytest.mark.django_db(transaction=True)
DISCONNECT, END, END_BLOCKER = "/admin/actions/disconnect/", "/admin/actions/end/", "/admin/actions/end-blocker/"
FORGET, RESYNC, REPLAY = "/admin/actions/forget/", "/admin/actions/resync/", "/admin/actions/replay/"
PARKED, RETRY, DROP = "/admin/actions/parked/", "/admin/actions/parked/retry/", "/admin/actions/parked/drop/"
ALL = [DISCONNECT, FORGET, RESYNC, REPLAY, END, END_BLOCKER, RETRY, DROP]


@pytest.fixture
def staff(client):
    """``staff("end_holder")``: a client of a user who may do that."""

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


def test_what_holds_a_stream_back_is_named_and_ended(staff, monkeypatch):
    monkeypatch.setattr(end, "YOUNG_SECONDS", 0.0)
    before = append()
    with held_open():
        client = staff("end_holder")
        page = text(client.get(f"{END}?name=caches"))
        assert "Open: database session" in page
        assert "open since" in page
        assert client.post(f"{END}?name=caches").status_code == 302
    assert ids() == before, "it was rolled back"
    wait_for_linear(append()[0])
    assert "1 transaction ended" in LogEntry.objects.get().change_message


def test_the_session_whose_lock_an_append_waits_for_is_named_and_ended(staff, monkeypatch):
    monkeypatch.setattr(end, "YOUNG_SECONDS", 0.0)
    before = append()
    client, address = staff("end_holder"), f"{END_BLOCKER}?name=caches"
    with writer_waits_for("another program") as written:
        page = wait_until(lambda: (said := text(client.get(address))) and "another program" in said and said)
        assert "The append goes on." in page
        assert "It waits for a lock of database session" in text(client.get(f"{END}?name=caches"))
        assert client.post(address).status_code == 302
    assert ids() == [*before, *written], "the append went on"
    assert "1 session ended" in LogEntry.objects.get().change_message
    assert "waits for a lock of another session" in text(client.get(address))


def test_a_stream_that_nobody_holds_back_is_left_alone(staff):
    append()
    client = staff("end_holder")
    assert "Nothing holds caches back" in text(client.get(f"{END}?name=caches"))
    client.post(f"{END}?name=caches")
    assert not LogEntry.objects.exists()


def test_pages_of_readers_and_positions_lead_to_their_actions(staff):
    append()
    linear()
    reader = Reader.objects.create(key="k", name="worker", kind="connection")
    client = staff("view_reader", "view_streamposition", "disconnect_reader", "end_holder")
    assert f"{DISCONNECT}?name=k" in text(client.get(f"/admin/streams/reader/{reader.pk}/change/"))
    page = text(client.get(f"/admin/streams/streamposition/{StreamPosition.objects.get().pk}/change/"))
    assert f"{END}?name=caches" in page


@pytest.mark.parametrize("address", ALL)
@pytest.mark.parametrize(
    "query",
    [
        "",
        "?name=nobody",
        "?name=%00",
        "?name=master&token=x",
        f"?name=master&token={2**63}",
        f"?name=master&token={'9' * 5_000}",
    ],
)
def test_whom_nobody_knows_is_not_found(staff, address, query):
    client = staff(
        "disconnect_reader",
        "forget_reader",
        "resync_reader",
        "end_holder",
        "retry_parked",
        "drop_parked",
    )
    assert client.get(address + query).status_code == 404
    assert client.post(address + query).status_code == 404


@pytest.mark.parametrize("address", ALL)
def test_nobody_acts_without_the_permission(staff, client, address):
    assert client.post(f"{address}?name=caches").status_code == 302, "to the login"
    for method in ("get", "post"):
        assert getattr(staff() if method == "get" else client, method)(f"{address}?name=caches").status_code == 403
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


def test_a_reader_is_set_to_the_present_and_the_page_says_what_it_passes_over(staff):
    """The same as ``manage.py resync reader``, with its trace."""
    append(5)
    wait_for_linear(ids()[-1])
    StoredCursor.objects.create(
        reader="billing", stream="caches", base=2, error="ValueError: <b>no</b>", ended_at=Now()
    )
    client = staff("resync_reader", "view_storedcursor")
    address = f"{RESYNC}?name=billing"
    assert address in text(client.get(f"/admin/streams/storedcursor/{StoredCursor.objects.get().pk}/change/"))
    page = text(client.get(address))
    assert "caches at 2" in page
    assert "ValueError: &lt;b&gt;no" in page
    assert f"never handles the {len([one for one in ids() if one > 2])} facts in between" in page
    assert StoredCursor.objects.get().base == 2, "looking does nothing"
    assert client.post(address).status_code == 302
    cursor = StoredCursor.objects.get()
    assert (cursor.base, cursor.error) == (ids()[-1], "")
    assert ReaderResync.objects.get().resynced_by == "ann"
    assert f"caches 2 -> {ids()[-1]}" in LogEntry.objects.get().change_message


@pytest.fixture
def replayed():
    """A reader that has handled five facts."""
    append(5)
    wait_for_linear(ids()[-1])
    return StoredCursor.objects.create(reader="billing", stream="caches", base=ids()[-1], ended_at=Now())


def test_a_reader_is_replayed_from_a_time_after_a_preview(staff, replayed):
    client = staff("resync_reader", "view_storedcursor")
    address = f"{REPLAY}?name=billing"
    assert address in text(client.get(f"/admin/streams/storedcursor/{replayed.pk}/change/"))
    asks = text(client.get(address))
    assert 'type="datetime-local" name="since"' in asks
    assert "Handle them again" not in asks, "nothing is chosen yet"
    client.post(address)
    assert StoredCursor.objects.get().base == ids()[-1]
    page = text(client.get(f"{address}&since=1h&token=&stream=caches"))
    assert f"5 facts, from {ids()[0]}, inserted" in page
    assert "by the database&#x27;s clock" in page
    assert StoredCursor.objects.get().base == ids()[-1], "looking does nothing"
    assert client.post(f"{address}&since=1h&token=&stream=caches").status_code == 302
    assert StoredCursor.objects.get().base == ids()[0] - 1
    assert ReaderResync.objects.get().resynced_by == "ann"
    assert "5 facts" in LogEntry.objects.get().change_message


def test_a_reader_is_replayed_after_a_fact(staff, replayed):
    client, address = staff("resync_reader"), f"{REPLAY}?name=billing&since=&token={ids()[2]}&stream=caches"
    assert f"2 facts, from {ids()[3]}" in text(client.get(address))
    client.post(address)
    assert StoredCursor.objects.get().base == ids()[2]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("since=tomorrow", "is no time"),
        ("since=2999-01-01", "in the future"),
        ("since=1h&token=2", "not both"),
        ("token=999999", "beyond the present position"),
        ("token=2&stream=clouds", "There is no stream"),
        ("token=2&stream=events", "does not follow"),
    ],
)
def test_a_place_that_cannot_be_replayed_from_is_refused_in_words(staff, replayed, query, said):
    client, address = staff("resync_reader"), f"{REPLAY}?name=billing&{query}"
    assert said in text(client.get(address))
    assert client.post(address).status_code == 200
    assert StoredCursor.objects.get().base == replayed.base
    assert not LogEntry.objects.exists()


def test_a_reader_that_runs_is_not_replayed(staff, replayed):
    with session() as held:
        hold_name(held, "billing")
        page = staff("resync_reader").post(f"{REPLAY}?name=billing&since=1h", follow=True)
    assert "It failed" in text(page)
    assert StoredCursor.objects.get().base == replayed.base


def test_a_reader_that_runs_is_not_resynced(staff):
    StoredCursor.objects.create(reader="billing", stream="caches", base=2)
    with session() as held:
        hold_name(held, "billing")
        page = staff("resync_reader").post(f"{RESYNC}?name=billing", follow=True)
    assert "It failed" in text(page)
    assert StoredCursor.objects.get().base == 2


@pytest.fixture
def billing(monkeypatch):
    """A reader whose handler refuses one token. Returns the tokens that it has taken."""
    taken = []
    append(9)
    StoredCursor.objects.create(reader="billing", stream="caches", base=ids()[-1], ended_at=Now())

    def take(chunk):
        (fact,) = chunk
        if fact.token == 8:
            raise ValueError("<b>no such order</b>")
        taken.append(fact.token)

    monkeypatch.setattr(declared, "_handlers", {"billing": {"caches": Handler("caches", "billing", take)}})
    for token in (7, 8, 9):
        ParkedFact.objects.create(
            reader="billing", stream="caches", token=token, instance_name="master", rows=[[None, "get_user", ["@a:b"], 0]],
            error="ValueError: <b>no</b>", traceback="Traceback\n  <b>here</b>", attempts=1,
        )  # fmt: skip
    return taken


def test_dead_letters_are_listed_with_their_errors_and_what_can_be_done(staff, billing):
    page = text(staff("view_parkedfact", "retry_parked").get(f"{PARKED}?name=billing"))
    for words in (
        "caches 7",
        "ValueError: &lt;b&gt;no",
        "&lt;b&gt;here",
        f"{RETRY}?name=billing&amp;stream=caches&amp;token=8",
    ):
        assert words in page
    assert DROP not in page, "not allowed to this user"


def retry_of(reader="billing"):
    cursor = StoredCursor.objects.get(reader=reader)
    return cursor.retry_asked_by, cursor.retry_tokens, cursor.retry_result


def test_dead_letters_are_retried_by_the_process_of_their_reader(staff, billing):
    """Also those of a reader whose handlers are in the site's process."""
    client = staff("view_parkedfact", "retry_parked")
    asks = text(client.get(f"{RETRY}?name=billing"))
    assert "3 facts of caches: ValueError: &lt;b&gt;no" in asks
    assert "does not run: they are retried when it starts (manage.py runhandlers billing)" in asks
    assert retry_of() == ("", None, ""), "looking does nothing"
    answer = client.post(f"{RETRY}?name=billing")
    assert (answer.status_code, answer["Location"]) == (302, f"{PARKED}?name=billing")
    assert (billing, ParkedFact.objects.count()) == ([], 3), "no process runs the reader"
    assert "was asked to retry all dead letters of caches" in LogEntry.objects.get().change_message
    page = text(client.get(f"{PARKED}?name=billing"))
    assert "ann asked at" in page
    assert "retried when it starts" in page
    assert "data-retrying" in page
    with running(*handlers_of("billing"), name="billing"):
        wait_until(lambda: retry_of() == ("ann", None, "2 handled, 1 failed again, 1 left"))
    assert billing == [7, 9]
    assert [(one.token, one.attempts) for one in ParkedFact.objects.all()] == [(8, 2)]
    page = text(client.get(f"{PARKED}?name=billing"))
    assert "Result: 2 handled, 1 failed again, 1 left." in page
    assert "data-retrying" not in page


def test_a_retry_goes_to_the_process_that_runs(staff, billing):
    client = staff("view_parkedfact", "retry_parked")
    StoredCursor.objects.update(seen_at=Now(), ended_at=None)
    assert "begins within seconds" in text(client.get(f"{RETRY}?name=billing"))
    client.post(f"{RETRY}?name=billing")
    assert "begins within seconds" in text(client.get(f"{PARKED}?name=billing"))


def test_one_dead_letter_is_retried_or_dropped_alone(staff, billing):
    client = staff("retry_parked", "drop_parked")
    client.post(f"{RETRY}?name=billing&stream=caches&token=9")
    client.post(f"{RETRY}?name=billing&stream=caches&token=8")
    assert retry_of() == ("ann", [9, 8], ""), "a request that waits is not lost"
    client.post(f"{DROP}?name=billing&stream=caches&token=8")
    with running(*handlers_of("billing"), name="billing"):
        wait_until(lambda: retry_of()[2])
    assert retry_of() == ("ann", [9, 8], "1 handled, 0 failed again, 1 left")
    assert billing == [9]
    assert [one.token for one in ParkedFact.objects.all()] == [7]
    assert LogEntry.objects.count() == 3


CHOSEN = "name=billing&fact=caches+7&fact=caches+8"


def test_chosen_dead_letters_are_retried_together(staff, billing):
    client = staff("view_parkedfact", "retry_parked")
    page = text(client.get(f"{PARKED}?name=billing"))
    assert 'name="fact" value="caches 8"' in page
    assert f'formaction="{RETRY}"' in page
    assert f'formaction="{DROP}"' not in page
    assert "2 facts of caches: ValueError" in text(client.get(f"{RETRY}?{CHOSEN}"))
    client.post(f"{RETRY}?{CHOSEN}")
    assert "to retry 2 chosen dead letters of caches" in LogEntry.objects.get().change_message
    with running(*handlers_of("billing"), name="billing"):
        wait_until(lambda: retry_of() == ("ann", [7, 8], "1 handled, 1 failed again, 2 left"))
    assert billing == [7]


def test_chosen_dead_letters_are_dropped_together_whatever_came_since(staff, billing):
    client = staff("drop_parked")
    assert "2 facts of caches" in text(client.get(f"{DROP}?{CHOSEN}"))
    client.post(f"{DROP}?{CHOSEN}")
    assert [one.token for one in ParkedFact.objects.all()] == [9]
    assert "2 dead letters of billing dropped" in LogEntry.objects.get().change_message


@pytest.mark.parametrize("fact", ["caches", "7", "caches+x", "caches+-7", "%00+7", f"caches+{2**63}", "caches+77"])
def test_a_choice_that_means_nothing_is_not_found(staff, billing, fact):
    assert staff("drop_parked").post(f"{DROP}?name=billing&fact={fact}").status_code == 404
    assert ParkedFact.objects.count() == 3


def test_a_choice_of_nothing_is_not_a_choice_of_all(staff, billing):
    client = staff("view_parkedfact", "drop_parked")
    assert 'name="chosen"' in text(client.get(f"{PARKED}?name=billing"))
    for method in (client.get, client.post):
        assert method(f"{DROP}?name=billing&chosen=yes").status_code == 404
    assert ParkedFact.objects.count() == 3


def test_dead_letters_of_handlers_that_are_elsewhere_are_retried_there(staff, billing, monkeypatch):
    there = handlers_of("billing")
    monkeypatch.setattr(declared, "_handlers", {})
    client = staff("view_parkedfact", "retry_parked")
    assert "Retry</button>" in text(client.get(f"{RETRY}?name=billing"))
    client.post(f"{RETRY}?name=billing")
    with running(*there, name="billing"):
        wait_until(lambda: billing == [7, 9])


def test_a_refused_page_names_the_permission_that_is_missing(staff):
    client = staff()
    for address, permission in ((f"{END}?name=caches", "streams.end_holder"), (f"{PARKED}?name=w", "streams.view_parkedfact"),
                                ("/admin/streams/reader/", "streams.view_reader"),
                                ("/admin/pipeline/job/queue/", "pipeline.queue_job")):  # fmt: skip
        answer = client.get(address, headers={"accept": "text/html"})
        assert answer.status_code == 403
        assert f"<code>{permission}</code>" in text(answer)
        assert client.get(address, headers={"accept": "application/json"}).json()["permission"] == permission


def test_a_refused_page_of_an_admin_that_is_not_the_default_one_names_the_permission(staff, monkeypatch):
    monkeypatch.setattr(admin, "site", admin.AdminSite("another"))
    refused = staff().get("/admin/streams/reader/")
    assert (refused.status_code, refused.json()["permission"]) == (403, "streams.view_reader")


def test_what_is_not_there_has_a_page_that_says_so(staff):
    client = staff("end_holder")
    assert "There is no such stream." in text(client.get(f"{END}?name=<b>nobody</b>", headers={"accept": "text/html"}))
    answer = client.get("/nothing/here", headers={"accept": "text/html"})
    assert (answer.status_code, "There is no such page." in text(answer)) == (404, True)


def test_a_form_of_another_site_does_nothing(staff, monkeypatch):
    from django.test import Client

    monkeypatch.setattr(end, "YOUNG_SECONDS", 0.0)
    user = staff("end_holder").session["_auth_user_id"]
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(pk=user))
    with held_open() as held:
        assert strict.post(f"{END}?name=caches").status_code == 403
    assert ids() == held


def test_an_action_that_failed_is_in_the_log_as_well(staff, monkeypatch):
    """A part of it may be done."""
    monkeypatch.setattr(end, "YOUNG_SECONDS", 0.0)

    def fail(*_):
        raise errors.InsufficientPrivilege("permission denied to terminate process")

    monkeypatch.setattr(end, "_end", fail)
    with held_open():
        page = staff("end_holder").post(f"{END}?name=caches", follow=True)
    assert page.status_code == 200
    assert "It failed: permission denied" in LogEntry.objects.get().change_message


def test_an_action_says_when_the_database_is_away(staff, monkeypatch):
    client = staff("end_holder")

    def away(*_, **__):
        raise Database.OperationalError("connection refused")

    monkeypatch.setattr(driver, "direct_connection", away)
    for method in (client.get, client.post):
        assert method(f"{END}?name=caches").status_code == 503
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
