"""Statistics of rooms and server: what a batch adds, what it makes worth counting again."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from events.models import CurrentState
from pipeline.models import RoomDay, RoomStatistics, ServerStatistics, UserDay
from pipeline.statistics.update import (
    COUNTED,
    DAY_SECONDS,
    HOUR_SECONDS,
    Figures,
    add_figures,
    count_again,
    forget_rooms,
)

pytestmark = pytest.mark.django_db

HOUR_MS, DAY_MS = HOUR_SECONDS * 1000, DAY_SECONDS * 1000
NOON = datetime.combine(timezone.now().date() - timedelta(days=3), datetime.min.time(), UTC) + timedelta(hours=12)


def ms(moment):
    return int(moment.timestamp() * 1000)


def row(room, at=NOON, **counts):
    """What came in for a room in the hour of ``at``."""
    return {
        "hour_ms": ms(at) // HOUR_MS * HOUR_MS,
        "room_id": room,
        **{name: counts.get(name, 0) for name in (*COUNTED, "changes", "last_position")},
        "last_ms": ms(at) if counts.get("events") else 0,
    }


def add(*rows, senders=()):
    columns = {name: [one[name] for one in rows] for name in row("!")} if rows else {}
    at, users = [ms(day) // DAY_MS * DAY_MS for day, _ in senders], [user for _, user in senders]
    with transaction.atomic(), connection.cursor() as cursor:
        add_figures(cursor, Figures(**columns, day_ms=at, user_id=users), "site")


def room(room_id="!r"):
    return RoomStatistics.objects.get(room_id=room_id)


def server(step=DAY_SECONDS, at=NOON):
    begin = datetime.fromtimestamp(at.timestamp() // step * step, UTC)
    return ServerStatistics.objects.get(step_seconds=step, at=begin)


def member(room_id, user, membership):
    CurrentState.objects.create(
        room_id=room_id, type="m.room.member", state_key=user, event_id=f"${user}", membership=membership
    )


# --- what came in -----------------------------------------------------------------------------------------------------


def test_batches_add_up_in_the_room():
    add(row("!r", events=4, messages=3, state_events=1, last_position=8))
    add(row("!r", NOON + timedelta(hours=1), events=2, rejected=1, last_position=11), row("!s", events=1))
    assert [getattr(room(), name) for name in COUNTED] == [6, 3, 1, 1, 0]
    assert (room().last_position, room().last_event_at) == (11, NOON + timedelta(hours=1))
    assert room("!s").events == 1


def test_a_batch_may_bring_a_room_in_several_hours():
    add(row("!r", NOON + timedelta(hours=5), events=4, last_position=9), row("!r", events=2, last_position=3))
    assert (room().events, room().last_position, room().last_event_at) == (6, 9, NOON + timedelta(hours=5))


def test_history_is_counted_apart_and_is_not_news():
    add(row("!r", history=7, changes=7))
    assert (room().events, room().history, room().last_position, room().last_event_at) == (0, 7, 0, None)
    assert (server().events, server().history, server().active_rooms) == (0, 7, 0)


def test_hours_and_days_of_the_server_are_those_of_utc():
    late = NOON + timedelta(hours=11, minutes=59)
    add(row("!r", late, events=1), row("!s", late, events=2), row("!r", late + timedelta(minutes=2), events=4))
    assert server(HOUR_SECONDS, late).events == server(DAY_SECONDS, late).events == 3
    assert (
        server(HOUR_SECONDS, late + timedelta(minutes=2)).events == server(DAY_SECONDS, late + timedelta(1)).events == 4
    )


def test_nothing_is_nothing():
    add()
    assert not RoomStatistics.objects.exists() and not ServerStatistics.objects.exists()


# --- who was active ---------------------------------------------------------------------------------------------------


def test_a_user_is_active_once_a_day():
    senders = [(NOON, "@a:site"), (NOON, "@b:else")]
    add(row("!r", events=2), senders=senders)
    add(row("!r", events=3), senders=[*senders, (NOON, "@c:else")])
    add(row("!r", NOON + timedelta(1), events=1), senders=[(NOON + timedelta(1), "@a:site")])
    assert (server().active_users, server().active_local_users) == (3, 1)
    assert (server(at=NOON + timedelta(1)).active_users, server(at=NOON + timedelta(1)).active_local_users) == (1, 1)


@pytest.mark.parametrize("user", ["@a:site:8448", "@a:web.site", "@site:else", "site"])
def test_local_users_are_those_whose_id_ends_with_the_name(user):
    add(row("!r", events=1), senders=[(NOON, user)])
    assert UserDay.objects.get().is_local is (user == "site")


def test_a_room_is_active_once_a_day_from_its_first_new_event():
    add(row("!r", history=3), row("!s", events=1))
    assert server().active_rooms == 1
    add(row("!r", events=1), row("!s", events=1))
    add(row("!r", events=1))
    assert server().active_rooms == 2
    assert RoomDay.objects.get(room_id="!r").events == 2


def test_who_was_active_long_ago_is_not_told_any_more():
    add(row("!r", events=1), senders=[(NOON, "@a:site")])
    before = NOON - timedelta(days=4)
    add(row("!r", before, events=5), senders=[(before, "@a:site")])
    assert (server(at=before).events, server(at=before).active_users, server(at=before).active_rooms) == (5, 0, 0)


def test_a_clock_that_was_ahead_does_not_make_today_long_ago():
    ahead = timezone.now() + timedelta(days=400)
    add(row("!r", ahead, events=1), senders=[(ahead, "@a:site")])
    add(row("!r", events=1), senders=[(NOON, "@a:site")])
    assert server().active_users == 1


# --- members and state ------------------------------------------------------------------------------------------------


def test_members_and_state_are_counted_when_the_state_changed():
    for user, membership in {
        "@a:site": "join",
        "@b:else": "join",
        "@c:x": "ban",
        "@d:x": "invite",
        "@e:x": "knock",
    }.items():
        member("!r", user, membership)
    CurrentState.objects.create(room_id="!r", type="m.room.name", state_key="", event_id="$n")
    add(row("!r", events=1, changes=1))
    found = room()
    assert (found.joined, found.joined_local, found.banned, found.invited, found.knocking, found.left) == (
        2,
        1,
        1,
        1,
        1,
        0,
    )
    assert found.state_entries == 6


def test_messages_alone_do_not_make_the_members_be_counted(django_assert_num_queries):
    add(row("!r", events=1))
    first = room().figures_at
    add(row("!r", events=1))
    assert room().figures_at == first is not None
    member("!r", "@a:site", "join")
    add(row("!r", events=1, changes=1), row("!s", events=1))
    assert room().figures_at > first and room().joined == 1


def test_a_state_that_vanished_leaves_nobody():
    member("!r", "@a:site", "join")
    add(row("!r", events=1))
    CurrentState.objects.all().delete()
    with connection.cursor() as cursor:
        count_again(cursor, ["!r", "!unknown"], "site")
    assert (room().joined, room().state_entries) == (0, 0)
    assert RoomStatistics.objects.count() == 1


def test_number_of_queries_does_not_depend_on_the_rooms(django_assert_max_num_queries):
    with django_assert_max_num_queries(8):
        add(*(row(f"!{number}", events=1, changes=number % 2) for number in range(200)), senders=[(NOON, "@a:b")])
    assert RoomStatistics.objects.count() == 200


def test_rooms_that_are_gone_are_forgotten_and_the_server_keeps_its_numbers():
    add(row("!r", events=1), row("!s", events=1))
    with connection.cursor() as cursor:
        forget_rooms(cursor, ["!r"])
    assert [found.room_id for found in RoomStatistics.objects.all()] == ["!s"]
    assert set(RoomDay.objects.values_list("day", "room_id")) == {(date.fromisoformat(f"{NOON:%Y-%m-%d}"), "!s")}
    assert server().events == 2
