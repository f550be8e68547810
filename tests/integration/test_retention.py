"""Purging what rooms have kept for long enough."""

import io
import json
import time

import pytest
from django.core.management import call_command

from events.maintenance.purge_history import purge_lock
from events.models import Event
from events.persist.room_cache import clear_caches
from events.reading.user_timeline import timeline_of
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
