"""The ranges of a stored room, made anew from what is stored, against those that were written."""

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings

from events.models import EventVisibility, Room
from events.persist.rebuild_visibility import rebuild_visibility, recomputed_ranges
from tests.oracle.answers import parsed
from tests.support.effort import examples
from tests.support.generated_rooms import forked_rooms
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.ranges import stored_ranges
from tests.support.room_data import ROOM_NAMES
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "room", [pytest.param(room, marks=pytest.mark.scenario if room == "large_v10" else ()) for room in ROOM_NAMES]
)
def test_ranges_of_shipped_rooms_come_out_the_same(room):
    events = parsed(room)
    store_room(events)
    room_id = events[0].room_id
    before = stored_ranges(room_id)
    assert len(before) > 3 and recomputed_ranges(room_id) == before


@settings(
    deadline=None,
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(made=forked_rooms())
def test_ranges_of_generated_rooms_come_out_the_same(made):
    with transaction.atomic():
        store_room(made.events)
        before = stored_ranges(made.room_id)
        assert recomputed_ranges(made.room_id) == before
        transaction.set_rollback(True)


def test_a_membership_ends_above_a_soft_failed_one_that_came_by_backfill():
    """What this one changed was missing in the state after it, so the event above it did not reach the room's last one."""
    made = MadeRoom()
    joined = made.member(BOB, "join")
    old = made.member(BOB, "join", [joined], soft_failed=True, stream_ordering=-1)
    made.message([old])
    made.member(BOB, "leave", sender=ALICE)
    made.events = [old, *(event for event in made.events if event is not old)]
    store_room(made.events)
    before = stored_ranges(made.room_id)
    assert any(row.user_id == BOB and row.kind == "cut" for row in before)
    assert recomputed_ranges(made.room_id) == before


def test_ranges_that_were_lost_are_written_again():
    made = MadeRoom()
    made.message()
    store_room(made.events)
    before = stored_ranges(made.room_id)
    EventVisibility.objects.all().delete()
    assert rebuild_visibility(made.room_id) and stored_ranges(made.room_id) == before


def test_room_with_a_live_event_of_unknown_state_keeps_none():
    made = MadeRoom()
    made.message(prev=["$gone"])
    store_room(made.events)
    assert not rebuild_visibility(made.room_id)
    assert stored_ranges(made.room_id) == [] and Room.objects.get().visibility_unresolved
