"""Live events that come after events on top of them: these came with their state, or a server stored them out of order."""

import pytest
from msgspec.structs import replace

from events.integrity.repair import resync_room
from events.models import EventVisibility
from events.persist.rebuild_visibility import recomputed_ranges
from events.reading.pages import timeline_of
from tests.integration.events.test_extremities import with_its_state
from tests.support.made_rooms import BOB, public_room
from tests.support.persisted_rooms import incoming, persist, persist_all
from tests.support.ranges import assert_all_ways_agree, stored_ranges
from tests.support.room_results import room_history

pytestmark = pytest.mark.django_db


def left_above_a_late_message():
    """Bob's leave came with the state before it; then came the message below it, which was said while he was in."""
    made = public_room()
    made.member(BOB, "join")
    persist_all(made.events)
    late = made.message()
    leave = made.member(BOB, "leave")
    persist(with_its_state(made, leave))
    persist([incoming(late)])
    return made, late, leave


def shown_to_bob(made):
    return [event.event_id for event in timeline_of(BOB, made.room_id)]


def test_who_left_sees_nothing_later_after_a_rebuild():
    made, late, leave = left_above_a_late_message()
    after = made.message()
    persist([incoming(after)])
    before = shown_to_bob(made)
    assert leave.event_id in before and not {late.event_id, after.event_id} & set(before)
    assert stored_ranges(made.room_id) == recomputed_ranges(made.room_id)
    EventVisibility.objects.filter(room_id=made.room_id).delete()
    resync_room(made.room_id, "visibility")
    assert shown_to_bob(made) == before
    assert_all_ways_agree(made.room_id)


def test_who_left_sees_nothing_later_when_another_late_event_comes():
    """Without a rebuild by an operator."""
    made, late, _ = left_above_a_late_message()
    after = made.message()
    persist([incoming(after)])
    other_late = made.message(prev=[after])
    persist(with_its_state(made, made.topic("x")))
    persist([incoming(other_late)])
    assert not {late.event_id, after.event_id} & set(shown_to_bob(made))
    assert_all_ways_agree(made.room_id)


def test_who_left_is_cut_at_the_leave_in_an_import_that_is_out_of_order():
    made = public_room()
    made.member(BOB, "join")
    late, leave, after = made.message(), made.member(BOB, "leave"), made.message()
    told = [replace(event, stream_ordering=n) for n, event in enumerate([*made.events[:-3], leave, late, after], 1)]
    result = room_history(told)
    assert [(row.first, row.last) for row in result.visibility if row.kind == "cut"] == [(told.index(told[-3]), None)]
