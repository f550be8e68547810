"""The admin shows every table to staff and lets nobody change anything."""

from __future__ import annotations

import csv
import re
from io import StringIO

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.db import connection
from django.db.models import CompositePrimaryKey
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from events.models import Event, EventEdge, EventJson, Room
from pipeline.models import Job, QuarantinedLine
from state.models import StateGroup, StateGroupDelta
from streams.admin import base
from streams.admin.base import MOST_CSV_ROWS, EstimatedPaginator
from streams.catalog.models import CacheInvalidation
from streams.models import Reader, RecordedFact, StreamPosition

pytestmark = pytest.mark.django_db

ROOMS = ("streams", "streams_catalog", "state", "events", "pipeline", "replsite_api")
MODELS = [
    m
    for label in ROOMS
    for m in apps.get_app_config(label).get_models()
    if not isinstance(m._meta.pk, CompositePrimaryKey)
]
IDS = [model._meta.label_lower for model in MODELS]
HOSTILE = '<script>alert("x")</script>'


@pytest.fixture
def filled():
    """A row or two of what matters, with names that should never become markup."""
    StreamPosition.objects.create(stream="caches", instance_name=HOSTILE, position=5)
    Reader.objects.create(key="k", name=HOSTILE, kind="connection", positions={HOSTILE: {}})
    CacheInvalidation._base_manager.writable().bulk_create(
        [CacheInvalidation(stream_id=2, instance_name="w", cache_name=HOSTILE, keys=None)]
    )
    Room.objects.create(room_id="!a:b", room_version="10")
    where = {"room_id": "!a:b", "type": HOSTILE, "sender": "@a:b", "topological_ordering": 1, "origin_server_ts": 1}
    Event._base_manager.writable().bulk_create([Event(stream_ordering=2, instance_name="w", event_id="$a/+b", **where)])
    EventJson.objects.create(
        event_id="$a/+b", room_version="10", json=b'{"body":"<script>alert(1)</script>\\u0000\\ud800"}'
    )
    EventEdge.objects.create(event_id="$a/+b", prev_event_id="$before")
    group = StateGroup.objects.create(room_id="!a:b", chain=1, hops=0, keys=1, rows_to_read=1)
    StateGroupDelta.objects.create(chain=1, state_group=group.pk, type="m.room.name", state_key=HOSTILE, event_id="$n")
    QuarantinedLine.objects.create(
        job=Job.objects.create(kind="import"), file="f", line=1, reason="not_json", content=b"\x00\xff{"
    )


def changelist(model):
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def detail(model, row):
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[row.pk])


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_every_model_is_registered(model):
    assert admin.site.is_registered(model)


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_every_list_and_detail_answers(admin_client, filled, model):
    assert admin_client.get(changelist(model)).status_code == 200
    row = model._base_manager.first()
    if row is not None:
        answer = admin_client.get(detail(model, row))
        assert answer.status_code == 200
        assert b"<script>alert" not in answer.content


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_nothing_can_be_added_changed_or_deleted(admin_client, filled, model):
    base = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    assert admin_client.get(reverse(f"{base}_add")).status_code == 403
    assert admin_client.post(reverse(f"{base}_add"), {}).status_code == 403
    row = model._base_manager.first()
    if row is None:
        return
    assert admin_client.post(detail(model, row), {}).status_code == 403
    assert admin_client.post(reverse(f"{base}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
    admin_client.post(changelist(model), {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert model._base_manager.filter(pk=row.pk).exists()


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_every_search_answers(admin_client, filled, model):
    for words in ("$a/+b", "5", "x\x00y", "%", "'"):
        assert admin_client.get(changelist(model), {"q": words}).status_code in (200, 302), words


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_no_list_takes_lookups_that_it_does_not_offer(admin_client, filled, model):
    for asked in ({"pk__regex": "("}, {"pk__in": "1,2"}, {"pk__isnull": "maybe"}, {"pk__gt": "9" * 4_000}):
        assert admin_client.get(changelist(model), asked).status_code == 400, asked


def test_lists_take_the_lookups_that_they_offer(admin_client, filled):
    for name, value in (
        ("stream", "events"),
        ("stream__exact", "events"),
        ("state__exact", "x"),
        ("stream__isnull", "True"),
    ):
        assert admin_client.get(changelist(StreamPosition), {name: value}).status_code == 200
    assert admin_client.get(changelist(RecordedFact), {"server__id__exact": "1"}).status_code == 200
    # A value that the database takes nowhere is no error of ours.
    assert admin_client.get(changelist(StreamPosition), {"stream": "\0"}).status_code in (302, 400)


#: Lists that may be sorted, because every order has an index (``test_room_list``).
SORTED = {Room}


@pytest.mark.parametrize("model", [m for m in MODELS if m not in SORTED], ids=lambda m: m._meta.label_lower)
def test_no_address_makes_a_list_sort_its_table(admin_client, filled, model):
    assert orders(admin_client, model, {"o": "1.2.3"}) == orders(admin_client, model, {})


def orders(client, model, asked):
    with CaptureQueriesContext(connection) as queries:
        assert client.get(changelist(model), asked).status_code == 200
    return [one["sql"].partition(" ORDER BY ")[2] for one in queries if model._meta.db_table in one["sql"]]


def test_a_search_longer_than_all_names_finds_nothing_at_once(admin_client, filled, django_assert_max_num_queries):
    with django_assert_max_num_queries(8) as queries:
        assert admin_client.get(changelist(StreamPosition), {"q": "x " * 2_000}).status_code == 200
    assert max(len(one["sql"]) for one in queries.captured_queries) < 5_000


TURNING = "a\x1b[2Jb\u202ec\u2066"


def test_text_that_moves_a_cursor_or_turns_around_is_shown_as_escapes(admin_client, transactional_db):
    from streams.models import Reader

    Reader.objects.create(key=TURNING, name=TURNING, kind="connection", address=TURNING, queued={TURNING: 1})
    pages = [admin_client.get(reverse("admin:streams_reader_changelist"))]
    [link] = set(re.findall(r'href="(/admin/streams/reader/[^"]+/change/)', pages[0].content.decode()))
    pages.append(admin_client.get(link))
    for page in pages:
        text = page.content.decode()
        assert page.status_code == 200
        assert not {"\x1b", "\u202e", "\u2066"} & set(text)
        assert r"a\x1b[2Jb\u202ec\u2066" in text


def test_event_shows_its_json_edges_and_markup_as_text(admin_client, filled):
    page = admin_client.get(detail(Event, Event._base_manager.get())).content.decode()
    assert "&lt;script&gt;alert(1)" in page
    assert "$before" in page


def test_quarantined_bytes_are_shown(admin_client, filled):
    assert "\\xff{" in admin_client.get(detail(QuarantinedLine, QuarantinedLine.objects.get())).content.decode()


def test_state_group_shows_its_deltas(admin_client, filled):
    assert "m.room.name" in admin_client.get(detail(StateGroup, StateGroup.objects.get())).content.decode()


def test_staff_without_the_view_permission_see_nothing(client, django_user_model, filled):
    user = django_user_model.objects.create_user("staff", password="x", is_staff=True)
    client.force_login(user)
    assert client.get(changelist(Event)).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_event"))
    assert client.get(changelist(Event)).status_code == 200


def test_moments_are_told_to_the_second(admin_client, filled):
    """So that a row can be laid beside a line of the log."""
    page = admin_client.get(reverse("admin:streams_reader_changelist")).content.decode()
    assert re.search(r">\d{4}-\d\d-\d\d \d\d:\d\d:\d\d<", page)
    assert "p.m." not in page and "a.m." not in page


def test_names_of_many_are_words():
    """Django appends an s to whatever it is."""
    plurals = [str(model._meta.verbose_name_plural) for model in admin.site._registry]
    odd = [name for name in plurals if re.search(r"(ss|[^aeiou]y)s$", name)]
    assert odd == []


def test_live_page_is_linked_from_the_index(admin_client):
    assert reverse("live") in admin_client.get(reverse("admin:index")).content.decode()


@pytest.mark.parametrize("model", [Event, EventJson, StateGroup, CacheInvalidation], ids=lambda m: m.__name__)
@pytest.mark.usefixtures("new_tables")
def test_lists_of_huge_tables_walk_an_index(admin_client, filled, model, django_assert_max_num_queries):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    with django_assert_max_num_queries(8) as queries:
        admin_client.get(changelist(model))
    (listing,) = [
        q["sql"]
        for q in queries
        if "ORDER BY" in q["sql"] and model._meta.db_table in q["sql"] and "COUNT" not in q["sql"]
    ]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {listing}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Index" in plan
    assert "Incremental Sort" in plan or "Sort" not in plan, plan  # sorting within equal IDs is cheap


def test_a_list_that_is_longer_than_what_is_counted_says_so(filled, admin_client, monkeypatch):
    """It said "10001 events"."""
    StreamPosition.objects.bulk_create(
        StreamPosition(stream="caches", instance_name=f"w{n}", position=5) for n in range(12)
    )
    monkeypatch.setattr(EstimatedPaginator, "exact_upto", 10)
    text = admin_client.get(changelist(StreamPosition), {"stream": "caches"}).content.decode()
    assert "more than 10" in text
    assert not re.search(r"\b11\b", text.split('id="result_list"')[-1].split("</table>")[-1])


def test_positions_of_a_stream_that_counts_downwards_are_tokens(admin_client):
    """The page showed -9 where the live page showed 9."""
    row = StreamPosition.objects.create(stream="backfill", instance_name="w", position=-9, last_write_position=-8)
    assert not re.search(r">\s*-[789]\s*<", admin_client.get(changelist(StreamPosition)).content.decode())
    page = admin_client.get(reverse("admin:streams_streamposition_change", args=[row.pk])).content.decode()
    assert not re.search(r">\s*-[89]\s*<", page) and re.search(r">\s*9\s*<", page)


def test_large_tables_are_estimated_and_small_ones_counted(filled, monkeypatch):
    rows = CacheInvalidation._base_manager.order_by("pk")
    assert EstimatedPaginator(rows, 10).count == 1
    CacheInvalidation._base_manager.writable().bulk_create(
        CacheInvalidation(stream_id=n, instance_name="w", cache_name="c") for n in range(3, 53)
    )
    monkeypatch.setattr(EstimatedPaginator, "exact_upto", 10)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE streams_cacheinvalidation")
    assert EstimatedPaginator(rows, 10).count == 51
    assert EstimatedPaginator(rows.filter(instance_name="w"), 10).count == 11
    assert str(EstimatedPaginator(rows, 10).count) == "about 51"
    assert str(EstimatedPaginator(rows.filter(instance_name="w"), 10).count) == "more than 10", "a limit is no count"
    assert EstimatedPaginator(rows, 10).num_pages == 6
    monkeypatch.setattr(EstimatedPaginator, "most_pages", 3)
    assert EstimatedPaginator(rows, 10).num_pages == 3


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_every_list_is_served_as_csv_too(admin_client, filled, model):
    answer = admin_client.get(
        reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_changelist"), {"format": "csv"}
    )
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    titles, *rows = csv.reader(StringIO(answer.content.decode()))
    assert titles
    assert len(rows) == min(model._default_manager.count(), MOST_CSV_ROWS)
    assert {len(row) for row in rows} <= {len(titles)}


def test_a_list_as_csv_is_filtered_and_cut_and_only_for_those_who_may_view_it(
    admin_client, client, monkeypatch, django_user_model
):
    for name in ("=1+1", "b", "c"):
        Reader.objects.create(key=name, name=name, kind="follower")
    address = reverse("admin:streams_reader_changelist")
    assert "'=1+1," in admin_client.get(address, {"format": "csv"}).content.decode(), "no formula"
    assert len(admin_client.get(address, {"format": "csv", "q": "b"}).content.decode().splitlines()) == 2
    assert admin_client.get(address, {"format": "csv", "nonsense": "1"}).status_code == 400
    monkeypatch.setattr(base, "MOST_CSV_ROWS", 2)
    assert len(admin_client.get(address, {"format": "csv"}).content.decode().splitlines()) == 3
    client.force_login(django_user_model.objects.create_user("ann", is_staff=True))
    assert client.get(address, {"format": "csv"}).status_code == 403
