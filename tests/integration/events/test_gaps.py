"""Gaps of timelines: marked at the event above them, live and by import, and crossed by syncs."""

from __future__ import annotations

import pytest

from events.models import Event, TimelineGap
from events.persist.batch import with_state
from streams.core.tokens import VectorToken
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.persisted_rooms import incoming, persist
from tests.support.syncing import here, ids, only, since

pytestmark = pytest.mark.django_db


@pytest.fixture
def made():
    """A public room that Bob has joined from here, so that nothing before the join is stored."""
    room = MadeRoom(ruled=True)
    room.state("m.room.join_rules", "", {"join_rule": "public"})
    return room


def with_its_state(made, event):
    """The batch of an event with the state before it, as another server tells it."""
    by_id = {known.event_id: known for known in made.events}
    state = [by_id[event_id].json for event_id in made.state_after(event.prev_event_ids[0]).values()]
    return with_state(incoming(event), state)


def marks(room_id):
    """The events above the gaps."""
    places = TimelineGap.objects.filter(room_id=room_id).values("stream_ordering")
    return set(Event.objects.filter(stream_ordering__in=places).values_list("event_id", flat=True))


def store(made, *events):
    for event in events:
        outcome = persist([incoming(event)])
        assert outcome.refused == []


def store_above_a_gap(made, event):
    assert persist(with_its_state(made, event)).refused == []


def test_a_join_through_another_server_stands_above_a_gap(made):
    made.message()
    join = made.member(BOB, "join")
    store_above_a_gap(made, join)
    assert marks(made.room_id) == {join.event_id}
    assert TimelineGap.objects.get().instance_name == Event.objects.get(event_id=join.event_id).instance_name


def test_events_on_top_of_what_is_here_mark_nothing(made):
    join = made.member(BOB, "join")
    store_above_a_gap(made, join)
    store(made, made.message(), made.message())
    assert marks(made.room_id) == {join.event_id}


def test_a_sync_across_a_gap_is_limited_and_begins_above_it(made):
    store_above_a_gap(made, made.member(BOB, "join"))
    token = here()
    below = made.message()
    store(made, below)
    made.message()  # never comes
    above = made.message()
    store_above_a_gap(made, above)
    last = made.message(sender=BOB)
    store(made, last)
    answer = only(since(BOB, token).joined)
    assert (ids(answer.timeline), answer.limited) == ([above.event_id, last.event_id], True)
    assert not only(since(BOB, token, VectorToken(answer.timeline[0].stream_ordering - 1)).joined).limited


def test_a_gap_that_is_filled_still_limits_who_has_not_crossed_it(made):
    store_above_a_gap(made, made.member(BOB, "join"))
    token = here()
    missing = made.message()
    above = made.message()
    store_above_a_gap(made, above)
    persist([incoming(missing, backfilled=True)])
    answer = only(since(BOB, token).joined)
    assert (ids(answer.timeline), answer.limited) == ([above.event_id], True)


def test_a_second_event_above_the_same_gap_marks_nothing_new(made):
    store_above_a_gap(made, made.member(BOB, "join"))
    missing = made.message()
    first = made.message([missing])
    store_above_a_gap(made, first)
    second = made.message([missing], sender=BOB)
    store_above_a_gap(made, second)
    assert first.event_id in marks(made.room_id)
    assert second.event_id not in marks(made.room_id)


def test_a_newly_joined_room_is_whole_and_needs_no_mark_to_be_limited(made):
    token = here()
    join = made.member(BOB, "join")
    store_above_a_gap(made, join)
    answer = only(since(BOB, token).joined)
    assert (ids(answer.timeline), answer.whole, answer.limited) == ([join.event_id], True, True)
    assert ALICE in {event.state_key for event in answer.state if event.type == "m.room.member"}
