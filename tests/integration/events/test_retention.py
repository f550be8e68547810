"""Purging what rooms have kept for long enough."""

import io
import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command

from events.maintenance.purge_lock import purge_lock
from events.models import Event
from events.persist.room_cache import clear_caches
from events.reading.pages import timeline_of
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.persisted_rooms import incoming, persist
from tests.support.syncing import first

pytestmark = pytest.mark.django_db(transaction=True)
DAY = 86_400_000


@pytest.fixture(autouse=True)
def _forget():
    yield
    clear_caches()


def run(*more):
    out = io.StringIO()
    call_command("purge", "retention", "--json", *more, stdout=out, stderr=io.StringIO())
    return json.loads(out.getvalue())


def room_of(room_id, lifetime=None, version="10"):
    """Five messages of 10, 9, 8, 2 and 0 days ago."""
    made = MadeRoom(version, room_id, ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    if lifetime is not None:
        made.state("m.room.retention", "", {"max_lifetime": lifetime})
    now = time.time_ns() // 1_000_000
    messages = [
        made.send({"type": "m.room.message", "origin_server_ts": now - days * DAY}) for days in (10, 9, 8, 2, 0)
    ]
    assert not persist([incoming(event) for event in made.events]).refused
    return messages


def left(messages):
    stored = set(Event.objects.values_list("event_id", flat=True))
    return [message.event_id in stored for message in messages]


def test_rooms_with_a_policy_lose_what_is_older():
    kept, week = room_of("!ever:a.test"), room_of("!week:a.test", 7 * DAY)
    foreseen = run("--dry-run")
    assert left(week) == [True] * 5
    assert run() == {**foreseen, "dry_run": False}
    assert (foreseen["rooms"], foreseen["deleted"]) == (1, 2)
    assert (left(kept), left(week)) == ([True] * 5, [False, False, True, True, True])
    assert run()["deleted"] == 0


def test_the_default_counts_where_there_is_no_policy(settings):
    settings.REPLSITE_RETENTION_DEFAULT_SECONDS = 9.5 * 86_400
    default, week = room_of("!ever:a.test"), room_of("!week:a.test", 7 * DAY)
    assert run()["rooms"] == 2
    assert (left(default), left(week)) == ([True] * 5, [False, False, True, True, True])


def test_the_last_event_stays_however_old(settings):
    messages = room_of("!brief:a.test", 0)
    assert run()["deleted"] == 4
    assert left(messages) == [False, False, False, False, True]


def test_a_room_that_is_being_purged_is_left_for_the_next_time():
    messages = room_of("!week:a.test", 7 * DAY)
    with purge_lock("!week:a.test", "default"):
        assert run()["busy"] == ["!week:a.test"]
    assert left(messages) == [True] * 5
    out = io.StringIO()
    call_command("purge", "retention", stdout=out, stderr=io.StringIO())
    assert "1 rooms: 2 events deleted" in out.getvalue()


@pytest.mark.parametrize("version", ["1", "5"])
@pytest.mark.parametrize("number", [10**400, -(10**4000)], ids=["large", "low"])
def test_a_policy_with_a_number_of_any_size_keeps_nothing_from_anybody(version, number):
    """Before room version 6 it is an event like others. No member could sync, and no room was purged any more."""
    odd, week = room_of("!a:a.test", number, version), room_of("!week:a.test", 7 * DAY)
    assert len(timeline_of(ALICE, "!a:a.test")) == len(odd) + 4
    assert {room.room_id for room in first(ALICE).rooms} == {"!a:a.test", "!week:a.test"}
    assert run()["rooms"] == 1
    assert (left(odd), left(week)) == ([True] * 5, [False, False, True, True, True])


def days_ago(*days, room_id="!week:a.test", lifetime=7 * DAY):
    """A room with a message of each of these days; a negative number is a clock that is ahead."""
    made = MadeRoom("10", room_id, ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.retention", "", {"max_lifetime": lifetime})
    now = time.time_ns() // 1_000_000
    sent = [made.send({"type": "m.room.message", "origin_server_ts": now - int(day * DAY)}) for day in days]
    assert not persist([incoming(event) for event in made.events]).refused
    return sent


YEARS = -225 * 365


def received(event, days):
    received_at = datetime.now(UTC) - timedelta(days=days)
    Event.objects.writable().filter(event_id=event.event_id).update(received_at=received_at)


def test_a_clock_ahead_keeps_nothing_for_ever():
    """One event of such a server lay early in the room, and nothing above it was ever deleted."""
    sent = days_ago(12, YEARS, *[10] * 30, 2)
    found = run()
    assert (found["deleted"], found["left"]) == (31, [])
    assert left(sent) == [False] * 31 + [True] * 2


def test_what_came_long_ago_has_expired_whatever_its_clock_said():
    sent = days_ago(YEARS, YEARS, YEARS, 0)
    for event in sent[:3]:
        received(event, 8)
    assert run()["deleted"] == 2
    assert left(sent) == [False, False, True, True]


@pytest.mark.parametrize("ahead", [0, -1 / 48, -1])
def test_a_clock_ahead_loses_no_message_that_just_came(ahead):
    sent = days_ago(10, 9, ahead, 0)
    assert run()["deleted"] == 1
    assert left(sent) == [False, True, True, True]


def test_what_stays_is_told_with_the_reason():
    sent = days_ago(10, 9, 1, 9, 8, 8)
    found = run("--dry-run")
    assert found["left"] == [
        {"room_id": "!week:a.test", "events": 2, "why": f"{sent[2].event_id} below them, at depth 7, has not expired"}
    ]
    assert run() == {**found, "dry_run": False}
    assert left(sent) == [False, False, True, True, True, True]
    out = io.StringIO()
    call_command("purge", "retention", stdout=out, stderr=io.StringIO())
    assert "!week:a.test: 2 expired messages stay: " in out.getvalue()


def test_a_redacted_policy_deletes_nothing():
    made = MadeRoom("10", "!week:a.test", ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    policy = made.state("m.room.retention", "", {"max_lifetime": 7 * DAY})
    sent = [made.message(), made.message(), made.redaction(policy)]
    assert not persist([incoming(event) for event in made.events]).refused
    assert run()["deleted"] == 0
    assert left(sent) == [True] * 3
