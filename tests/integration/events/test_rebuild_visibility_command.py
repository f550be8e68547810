"""``manage.py rebuild_visibility``."""

import io
import json

import pytest
from django.core.management import call_command

from events.models import EventVisibility
from tests.oracle.test_live_path import arriving
from tests.support.made_rooms import MadeRoom
from tests.support.persisted_rooms import persist_all, purge_half
from tests.support.ranges import stored_ranges
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments):
    """The objects printed, and the exit status."""
    out, status = io.StringIO(), 0
    try:
        call_command("rebuild_visibility", *arguments, "--json", stdout=out)
    except SystemExit as end:
        status = end.code
    return [json.loads(line) for line in out.getvalue().splitlines()], status


@pytest.fixture
def rooms():
    made = [MadeRoom(room_id=f"!{name}:a.test") for name in "ab"]
    for number, room in enumerate(made):
        store_room(room.events, first_position=2 + 10 * number)
    return [room.room_id for room in made]


def test_rooms_that_are_as_they_should_be(rooms):
    found, status = run("--all", "--check")
    assert status == 0
    assert found == [{"room_id": room_id, "known": True, "same": True, "before": 2, "rows": 2} for room_id in rooms]


def test_lost_ranges_are_found_by_the_check_and_written_by_the_rebuild(rooms):
    before = stored_ranges(rooms[0])
    EventVisibility.objects.filter(room_id=rooms[0], user_id__isnull=False).delete()
    for _ in range(2):  # checking changes nothing
        (found,), status = run(rooms[0], "--check")
        assert (found["same"], found["before"], found["rows"], status) == (False, 1, 2, 1)
    assert run(rooms[0])[1] == 1
    assert stored_ranges(rooms[0]) == before and run("--all", "--check")[1] == 0


def test_room_whose_state_is_not_known_has_none_and_that_is_right():
    made = MadeRoom()
    made.message(prev=["$gone"])
    store_room(made.events)
    (found,), status = run(made.room_id)
    assert (found["known"], found["same"], found["rows"], status) == (False, True, 0, 0)


def test_unknown_rooms_are_told(rooms):
    found, status = run("!nowhere:a.test", "!a\0:a.test", rooms[0])
    assert [line.get("error") for line in found] == ["unknown", "unknown", None] and status == 1


@pytest.mark.parametrize("room", ["v10_visibility_walk", "v11_fork_walk", "v10_gap"])
def test_what_follows_from_purged_events_stays(room):
    """Nobody can work out who sees what above a purge: those ranges are right, and must not be written anew."""
    events = arriving(room)
    persist_all(events, 30)
    room_id = events[0].room_id
    purge_half(room_id)
    before = stored_ranges(room_id)
    assert run(room_id, "--check")[1] == 0
    (found,), status = run(room_id)
    assert (found["same"], status) == (True, 0) and stored_ranges(room_id) == before
