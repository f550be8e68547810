"""The history of statistics: figures of the present hour and day, what is counted again, and its bounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from events.models import CurrentState, Event, Room
from pipeline.models import RoomDay, RoomStatistics, ServerStatistics, UserDay
from pipeline.statistics import history
from pipeline.statistics.history import bound_history, go_through, take_figures

pytestmark = pytest.mark.django_db


@pytest.fixture
def do():
    """Call with a cursor."""

    def work(function, *arguments):
        with connection.cursor() as cursor:
            return function(cursor, *arguments)

    return work


def today():
    return timezone.now().astimezone(UTC).date()


def room(room_id, **figures):
    Room.objects.create(room_id=room_id, room_version="10")
    return RoomStatistics.objects.create(room_id=room_id, **figures)


def test_figures_are_of_the_present_hour_and_day(do):
    room("!r", joined=3, joined_local=1, state_entries=9)
    room("!s", joined=2, state_entries=4)
    UserDay.objects.create(day=today(), user_id="@a:site", is_local=True)
    UserDay.objects.create(day=today() - timedelta(1), user_id="@a:site", is_local=True)
    UserDay.objects.create(day=today(), user_id="@b:else", is_local=False)
    do(take_figures)
    hour, day = ServerStatistics.objects.order_by("step_seconds")
    for row in (hour, day):
        assert (row.rooms, row.joined, row.joined_local, row.state_entries, row.monthly_local_users) == (2, 5, 1, 13, 1)
        assert row.database_bytes > row.event_bytes + row.state_bytes and row.event_bytes > 0 and row.state_bytes > 0
    assert day.at.time() == datetime.min.time() and timezone.now() - hour.at < timedelta(hours=2)


def test_figures_taken_later_take_the_place_and_counts_stay(do):
    do(take_figures)
    ServerStatistics.objects.update(events=7)
    room("!r", joined=3)
    do(take_figures)
    assert list(ServerStatistics.objects.values_list("events", "rooms", "joined").distinct()) == [(7, 1, 3)]


def test_rooms_counted_longest_ago_come_first(do):
    now = timezone.now()
    for number in range(4):
        room(f"!{number}", figures_at=now - timedelta(hours=number) if number != 1 else None)
        CurrentState.objects.create(
            room_id=f"!{number}", type="m.room.member", state_key="@a:site", event_id=f"${number}", membership="join"
        )
    assert do(go_through, "site", 2) == 0
    assert set(RoomStatistics.objects.filter(joined_local=1).values_list("room_id", flat=True)) == {"!1", "!3"}


def test_rooms_that_are_gone_are_forgotten(do):
    room("!kept")
    RoomStatistics.objects.create(room_id="!gone")
    RoomStatistics.objects.create(room_id="!only-an-outlier")
    RoomDay.objects.create(day=today(), room_id="!gone", events=1, history=0)
    Event.objects.writable().bulk_create(
        [Event(stream_ordering=5, event_id="$o", room_id="!only-an-outlier", type="t", sender="@a:b",
               topological_ordering=1, origin_server_ts=1, outlier=True, instance_name="w")]
    )  # fmt: skip
    assert do(go_through, "site") == 1
    assert set(RoomStatistics.objects.values_list("room_id", flat=True)) == {"!kept", "!only-an-outlier"}
    assert not RoomDay.objects.exists()


def test_hours_and_days_that_are_too_old_are_removed(do):
    now = timezone.now()
    for step, kept in ((3600, timedelta(hours=history.HOURS_KEPT)),
                       (86400, timedelta(days=history.DAYS_KEPT))):  # fmt: skip
        for age in (timedelta(0), kept - timedelta(minutes=5), kept + timedelta(minutes=5)):
            ServerStatistics.objects.create(step_seconds=step, at=now - age)
    do(bound_history)
    assert ServerStatistics.objects.filter(step_seconds=3600).count() == 2
    assert ServerStatistics.objects.filter(step_seconds=86400).count() == 2


def test_users_of_this_server_are_remembered_for_a_month_and_others_for_three_days(do):
    for age in (0, 2, 3, 29, 30):
        for user, is_local in (("@a:site", True), ("@b:else", False)):
            UserDay.objects.create(day=today() - timedelta(age), user_id=user, is_local=is_local)
    do(bound_history)
    kept = {(today() - row.day).days for row in UserDay.objects.filter(is_local=True)}
    assert kept == {0, 2, 3, 29}
    assert {(today() - row.day).days for row in UserDay.objects.filter(is_local=False)} == {0, 2}


def test_of_days_before_yesterday_the_busiest_rooms_stay(do):
    for age in (0, 1, 2, 300):
        for number in range(25):
            RoomDay.objects.create(day=today() - timedelta(age), room_id=f"!{number:02}", events=number, history=0)
    RoomDay.objects.create(day=today() - timedelta(history.DAYS_KEPT), room_id="!old", events=1, history=0)
    do(bound_history)
    counts = {(today() - row["day"]).days: 0 for row in RoomDay.objects.values("day")}
    for row in RoomDay.objects.all():
        counts[(today() - row.day).days] += 1
    assert counts == {0: 25, 1: 25, 2: 20, 300: 20}
    assert RoomDay.objects.filter(day=today() - timedelta(2)).earliest("events").events == 5
