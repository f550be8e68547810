"""The list of who did what, and when: its sources, filters, pages, rights and cost."""

from __future__ import annotations

import csv
from datetime import timedelta
from io import StringIO

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from pipeline.models import Job
from replsite.history import happened, happened_page
from replsite.history.happened import SOURCES, Wanted, read_page
from streams.models import ReaderResync, StreamPosition

pytestmark = pytest.mark.django_db
PATH = "/admin/happened/"
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


@pytest.fixture
def boss(client):
    client.force_login(User.objects.create_superuser("boss", password="x"))
    return client


@pytest.fixture
def things():
    """One thing of each source, a minute apart, the oldest first."""
    now, ann = timezone.now(), User.objects.create_user("ann", is_staff=True)
    about = StreamPosition.objects.create(stream="caches", instance_name="web-1", position=5)
    LogEntry.objects.log_actions(ann.pk, [about], CHANGE, change_message="web-1 is retired.", single_object=True)
    LogEntry.objects.update(action_time=now - timedelta(minutes=4))
    Job.objects.create(kind="censor", state="done", asked_by="bob", queued_at=now - timedelta(minutes=3))
    ReaderResync.objects.create(reader=HOSTILE, stream="caches", from_base=1, to_base=2, resynced_by="web-7",
                                resynced_at=now - timedelta(minutes=2))  # fmt: skip
    ReaderResync.objects.create(
        reader="mailer", stream="caches", from_base=4, to_base=9, resynced_by="ann", resynced_at=now
    )


def rows(client, **query):
    answer = client.get(PATH, query)
    assert answer.status_code == 200
    return [(row.kind, row.who) for row in answer.context["rows"]]


def test_every_source_is_in_one_list_newest_first(boss, things):
    assert rows(boss) == [("reader", "ann"), ("reader", "web-7"), ("job", "bob"), ("action", "ann")]
    text = boss.get(PATH).content.decode()
    for said in ("web-1 is retired.", "censor", "cursor set from 1 to 2", "cursor set from 4 to 9"):
        assert said in text
    assert "<img src=x" not in text and "\u202e" not in text
    assert f'href="{PATH}"' in text, "the sidebar leads there"


def test_it_is_filtered_by_kind_person_and_time(boss, things):
    assert rows(boss, kind="job") == [("job", "bob")]
    assert rows(boss, who="ann") == [("reader", "ann"), ("action", "ann")]
    now = timezone.now()
    begin, end = ((now - timedelta(seconds=ago)).isoformat() for ago in (210, 90))
    assert rows(boss, **{"from": begin, "until": end}) == [("reader", "web-7"), ("job", "bob")]
    assert rows(boss, who="nobody") == []


def test_logins_of_staff_are_recorded_with_the_address_and_those_of_others_are_not(client, boss):
    User.objects.create_user("clerk", password="y")
    for name, word in (("boss", "x"), ("clerk", "y")):
        assert client.post("/admin/login/", {"username": name, "password": word}).status_code in (200, 302)
    assert rows(boss) == [("login", "boss")]
    assert "Logged in from 127.0.0.1." in boss.get(PATH).content.decode()
    assert rows(boss, kind="action") == []


def test_all_pages_together_have_every_row_once(boss, things, monkeypatch):
    monkeypatch.setattr(happened_page, "ROWS_SHOWN", 1)
    found, query = [], ""
    while True:
        answer = boss.get(f"{PATH}?{query}")
        found += [(row.kind, row.key) for row in answer.context["rows"]]
        if not (query := answer.context["older"]):
            break
    assert [kind for kind, _ in found] == ["reader", "reader", "job", "action"]


def test_a_filter_searches_a_limited_number_of_rows_at_once_and_the_next_page_goes_on(monkeypatch):
    monkeypatch.setattr(happened, "SEARCHED", 10)
    now = timezone.now()
    for age in range(25, 0, -1):
        at, of_job, of_reader = now - timedelta(minutes=age), age in (3, 24), age == 18
        Job.objects.create(kind="censor", asked_by="ann" if of_job else "bob", queued_at=at)
        row = {"reader": "r", "stream": "s", "from_base": 1, "to_base": 2}
        ReaderResync.objects.create(**row, resynced_by="ann" if of_reader else "x", resynced_at=at)
    found, wanted = [], Wanted(("job", "reader"), who="ann")
    for _ in range(5):
        page = read_page(wanted, 50)
        found += [row.kind for row in page.rows]
        if not page.before:
            break
        wanted = Wanted(wanted.kinds, "ann", before=page.before)
    assert found == ["job", "reader", "job"]
    assert not page.before


def test_the_csv_has_the_same_rows_and_no_formulas(boss, things):
    ann = User.objects.get(username="ann")
    LogEntry.objects.log_actions(ann.pk, [ann], CHANGE, change_message="=HYPERLINK(1)", single_object=True)
    answer = boss.get(PATH, {"format": "csv", "who": "ann"})
    assert answer["Content-Type"].startswith("text/csv")
    head, *lines = csv.reader(StringIO(answer.content.decode()))
    assert head == ["time", "who", "kind", "what"]
    assert [line[1:3] for line in lines] == [["ann", "action"], ["ann", "reader"], ["ann", "action"]]
    assert lines[0][3] == "'=HYPERLINK(1)"
    LogEntry.objects.log_actions(ann.pk, [ann], CHANGE, change_message="\uff1dHYPERLINK(1)", single_object=True)
    _, line, *_ = csv.reader(StringIO(boss.get(PATH, {"format": "csv", "who": "ann"}).content.decode()))
    assert line[3] == "'\uff1dHYPERLINK(1)", "with some settings a wide sign begins a formula, too"


def test_additions_and_deletions_of_the_admin_say_what_they_were_about(boss):
    user = User.objects.get(username="boss")
    LogEntry.objects.log_actions(user.pk, [user], ADDITION, change_message=[{"added": {}}], single_object=True)
    assert "Added user boss" in boss.get(PATH, {"kind": "action"}).content.decode()


@pytest.mark.parametrize(
    "query",
    [{"kind": "war"}, {"who": "\x00"}, {"from": "noon"}, {"before": "job"}, {"before": "job:-1"}, {"before": "x:1"}],
)
def test_what_is_not_there_is_not_found(boss, query):
    assert boss.get(PATH, query).status_code == 404


def test_staff_sees_the_sources_whose_tables_it_may_view(client, things):
    clerk = User.objects.create_user("clerk", is_staff=True)
    client.force_login(clerk)
    assert client.get(PATH).status_code == 403
    clerk.user_permissions.add(Permission.objects.get(codename="view_job"))
    assert rows(client) == [("job", "bob")]
    assert client.get(PATH, {"kind": "reader"}).status_code == 404


def test_others_are_sent_to_the_login_and_nothing_can_be_posted(client, boss):
    assert boss.post(PATH).status_code == 405
    client.logout()
    assert client.get(PATH).status_code == 302


@pytest.mark.usefixtures("new_tables")
def test_each_source_is_read_by_its_key(things):
    for query in (Wanted(tuple(SOURCES)), Wanted(tuple(SOURCES), who="ann", begin=timezone.now() - timedelta(days=1))):
        with CaptureQueriesContext(connection) as queries:
            read_page(query, 50)
        assert len(queries) <= 2 * len(SOURCES)
        for asked in queries:
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL enable_seqscan = off")
                cursor.execute("SET LOCAL enable_sort = off")
                cursor.execute(f"EXPLAIN {asked['sql']}")
                plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "Index Scan Backward" in plan and "Sort" not in plan, plan
