"""Counts of rooms: what a batch adds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from pipeline.live.statistics_table import COUNTED, StatisticsTable
from pipeline.models import RoomStatistics

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def row(room, at=NOON, **counts):
    """What came in for a room in a batch, the newest of it at ``at``."""
    return {
        "room_id": room,
        **{name: counts.get(name, 0) for name in (*COUNTED, "last_position")},
        "last_ms": int(at.timestamp() * 1000) if counts.get("events") else 0,
    }


def add(*rows):
    with connection.cursor() as cursor:
        return StatisticsTable("default").write(cursor, {name: [one[name] for one in rows] for name in row("!")})


def room(room_id="!r"):
    return RoomStatistics.objects.get(room_id=room_id)


def test_batches_add_up_in_the_room():
    add(row("!r", events=4, messages=3, state_events=1, last_position=8))
    facts = add(row("!r", NOON + timedelta(hours=1), events=2, rejected=1, last_position=11), row("!s", events=1))
    assert [getattr(room(), name) for name in COUNTED] == [6, 3, 1, 1, 0]
    assert (room().last_position, room().last_event_at) == (11, NOON + timedelta(hours=1))
    assert room("!s").events == 1 and facts == {"events": 3, "backfill": 0}


def test_the_newest_stays_the_newest():
    add(row("!r", NOON + timedelta(hours=5), events=4, last_position=9))
    add(row("!r", events=2, last_position=3))
    assert (room().events, room().last_position, room().last_event_at) == (6, 9, NOON + timedelta(hours=5))


def test_history_is_counted_apart_and_is_not_news():
    assert add(row("!r", history=7)) == {"events": 0, "backfill": 7}
    assert (room().events, room().history, room().last_position, room().last_event_at) == (0, 7, 0, None)


def test_nothing_is_nothing():
    assert add() == {"events": 0, "backfill": 0} and not RoomStatistics.objects.exists()


def test_number_of_queries_does_not_depend_on_the_rooms(django_assert_num_queries):
    with django_assert_num_queries(1):
        add(*(row(f"!{number}", events=1) for number in range(200)))
    assert RoomStatistics.objects.count() == 200
