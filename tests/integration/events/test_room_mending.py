"""A room is mended by what a look without its lock has found, unless somebody wrote in it since."""

import pytest
from django.db import connection

from events.integrity import room_mending
from events.integrity.repair import check_room
from events.integrity.room_mending import find_damage, repair_room
from events.integrity.stored_rows import read_mark
from events.models import CurrentState, Event, EventVisibility, ForwardExtremity, Room
from events.persist.room_cache import clear_caches
from state.models import StateGroup
from tests.integration.events.test_live_is_bulk import generated
from tests.integration.events.test_room_repair import change, lost_extremity, missing_ranges, of_room, wrong_delta
from tests.support.persisted_rooms import persist_all

pytestmark = pytest.mark.django_db


@pytest.fixture
def made():
    room = generated(3)
    persist_all(room.events, 100)
    return room


@pytest.fixture
def looks(monkeypatch):
    """How often a room is read as a whole."""
    found, read = [], room_mending.read_room
    monkeypatch.setattr(
        room_mending, "read_room", lambda cursor, room_id: found.append(room_id) or read(cursor, room_id)
    )
    return found


def marked(room_id):
    with connection.cursor() as cursor:
        return read_mark(cursor, room_id)


def test_what_was_found_is_used_when_nobody_wrote_since(made, looks):
    missing_ranges(made.room_id)
    with connection.cursor() as cursor:
        found = find_damage(cursor, made.room_id, "rooms")
        mended = repair_room(cursor, made.room_id, "rooms", found)
    assert mended.before is found.report and len(looks) == 1 and check_room(made.room_id).clean


def test_what_was_found_is_worked_out_anew_when_somebody_wrote_since(made, looks):
    wrong_delta(made.room_id)
    clear_caches()
    with connection.cursor() as cursor:
        found = find_damage(cursor, made.room_id, "rooms")
        persist_all([made.message()])
        mended = repair_room(cursor, made.room_id, "rooms", found)
    assert mended.before is not found.report and mended.before.events == found.report.events + 1
    assert len(looks) == 2 and check_room(made.room_id).clean


def test_what_was_found_to_be_well_has_no_mark(made):
    with connection.cursor() as cursor:
        assert find_damage(cursor, made.room_id, "rooms").mark is None
        assert repair_room(cursor, made.room_id, "rooms").moved is None
        assert (find_damage(cursor, "!no:x", "rooms"), repair_room(cursor, "!no:x", "rooms")) == (None, None)


def test_another_subject_has_no_mark(made):
    lost_extremity(made.room_id)
    with connection.cursor() as cursor:
        assert find_damage(cursor, made.room_id, "visibility").mark is None
        assert find_damage(cursor, made.room_id, "extremities").mark is not None


WRITES = {
    "event": lambda made: persist_all([made.message()]),
    "verdict": lambda made: Event.objects.writable().filter(pk=of_room(made.room_id)[3].pk).update(soft_failed=False),
    "generation": lambda made: Room.objects.filter(pk=made.room_id).update(content_generation=7),
    "group": lambda made: StateGroup.objects.filter(pk=of_room(made.room_id)[3].state_group).delete(),
    "current state": lambda made: CurrentState.objects.filter(room_id=made.room_id).order_by("pk")[0].delete(),
    "range": lambda made: change(EventVisibility.objects.filter(room_id=made.room_id).order_by("pk"), kind="joined"),
    "leaf": lambda made: ForwardExtremity.objects.filter(room_id=made.room_id).order_by("pk")[0].delete(),
}


@pytest.mark.parametrize("name", WRITES)
def test_every_write_changes_the_mark(made, name):
    before = marked(made.room_id)
    assert marked(made.room_id) == before
    WRITES[name](made)
    assert marked(made.room_id) != before


def test_other_rooms_leave_the_mark_alone(made):
    before = marked(made.room_id)
    persist_all(generated(4, room_id="!other:a.test").events, 100)
    assert marked(made.room_id) == before
