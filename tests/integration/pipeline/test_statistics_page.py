"""The page of statistics: who sees what, what it lists, and what it costs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from pipeline.models import BatchLedger, RoomDay, RoomStatistics, ServerStatistics

pytestmark = pytest.mark.django_db

PATH = "/admin/statistics/"
HOSTILE = "!<img src=x onerror=alert(1)>:site"


@pytest.fixture
def boss(client):
    client.force_login(User.objects.create_superuser("boss"))
    return client


def fill(rooms=3, days=4):
    now = timezone.now()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    BatchLedger.objects.create(query="statistics", batch_id=1, offsets={})
    for age in range(days):
        ServerStatistics.objects.create(
            step_seconds=86400, at=midnight - timedelta(days=age), events=age * 1000 + 7, rooms=rooms
        )
    for number in range(rooms):
        RoomStatistics.objects.create(
            room_id=f"!{number}:site", events=100 + number, joined=50 - number, last_event_at=now
        )
        for age in range(days):
            RoomDay.objects.create(
                day=(now - timedelta(days=age)).date(), room_id=f"!{number}:site", events=number + 1, history=0
            )


def page(client, **query):
    answer = client.get(PATH, query)
    assert answer.status_code == 200
    return answer.content.decode()


def listed(text):
    """Rooms of the table of the biggest, in order."""
    table = text.split('aria-labelledby="statistics-biggest">')[-1].split("</table>")[0]
    return [part.split("</a>")[0] for part in table.split('<th scope="row"><a href="')[1:]]


def test_without_statistics_it_says_how_to_get_them(boss):
    text = page(boss)
    assert "manage.py pipeline run" in text and "No room has statistics yet." in text


def test_plots_and_tables_show_what_is_kept(boss):
    fill()
    text = page(boss)
    assert "the last batch was added at" in text and "Events per day" in text
    assert "at most 3,007" in text
    assert [room.split(">")[-1] for room in listed(text)] == ["!2:site", "!1:site", "!0:site"]
    assert text.count('class="statistics-rooms"') == 4


@pytest.mark.parametrize(("by", "first"), [("events", "!2:site"), ("joined", "!0:site"), ("history", "!0:site")])
def test_rooms_come_in_the_order_that_was_asked(boss, by, first):
    fill()
    assert listed(page(boss, by=by))[0].endswith(first)


@pytest.mark.parametrize("period", ["week", "quarter", "years"])
def test_every_period_can_be_shown(boss, period):
    fill()
    text = page(boss, period=period)
    assert ("Events per hour" in text) is (period == "week")
    assert "Users that sent something per day" in text


@pytest.mark.parametrize("query", [{"period": "month"}, {"by": "room_id"}, {"by": "events; --"}])
def test_unknown_choices_are_not_found(boss, query):
    assert boss.get(PATH, query).status_code == 404


def test_names_of_rooms_are_text(boss):
    RoomStatistics.objects.create(room_id=HOSTILE, events=5)
    text = page(boss)
    assert "<img src=x" not in text and "&lt;img src=x" in text


def test_queries_do_not_grow_with_rooms_and_days(boss):
    fill(rooms=1, days=1)
    with CaptureQueriesContext(connection) as few:
        page(boss)
    RoomStatistics.objects.bulk_create([RoomStatistics(room_id=f"!more{number}") for number in range(60)])
    RoomDay.objects.bulk_create(
        [RoomDay(day=timezone.now().date(), room_id=f"!more{number}", events=number, history=0) for number in range(60)]
    )
    with CaptureQueriesContext(connection) as many:
        text = page(boss)
    assert len(many) == len(few) <= 12
    assert len(listed(text)) == 20 and text.count("<li>") == 5 + text.count("<li>", 0, text.index("statistics-biggest"))


def test_staff_without_the_permission_sees_no_rooms(client):
    fill()
    clerk = User.objects.create_user("clerk", is_staff=True)
    client.force_login(clerk)
    assert "!2:site" not in page(client)
    clerk.user_permissions.add(Permission.objects.get(codename="view_roomstatistics"))
    assert "!2:site" in page(client)


def test_others_are_sent_to_the_login(client):
    assert client.get(PATH).status_code == 302
    client.force_login(User.objects.create_user("user"))
    assert client.get(PATH).status_code == 302


def test_it_only_reads(boss):
    assert boss.post(PATH).status_code == 405


def test_sidebar_leads_there(boss):
    assert f'href="{PATH}"' in page(boss)
