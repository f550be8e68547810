"""``RoomStates`` of the caller see the state after each event, and may give or replace it."""

from __future__ import annotations

import pytest

from events.history.rows import RoomHistory
from events.room.state_assignment import RoomStates
from tests.support.made_rooms import MadeRoom
from tests.support.room_results import GivenEvents

TOPIC = ("m.room.topic", "")


def history(made, check, chunk):
    class Checked(RoomStates):
        def _assign(self, event):
            super()._assign(event)
            check(self, event)

    return RoomHistory(GivenEvents(made.events), chunk, make_states=Checked)


@pytest.mark.parametrize("chunk", [2, 1_000])
def test_each_event_is_passed_on_once_with_the_state_after_it(chunk):
    made = MadeRoom()
    topic = made.topic("t")
    seen = {}
    history(made, lambda states, event: seen.setdefault(event.event_id, states.after.get(event.event_id)), chunk)
    assert [*seen] == [event.event_id for event in made.events]
    assert seen[topic.event_id] is not None


@pytest.mark.parametrize("chunk", [2, 1_000])
def test_what_builds_on_an_event_has_the_state_that_was_given(chunk):
    made = MadeRoom()
    topic, message = made.topic("t"), made.message()

    def without_topic(states, event):
        if event.event_id == topic.event_id:
            states.after[event.event_id] = states.builder.add(states.after[event.event_id], {TOPIC: None})

    assert TOPIC in history(made, lambda *_: None, chunk).state_after({message.event_id})
    assert TOPIC not in history(made, without_topic, chunk).state_after({message.event_id})


def test_a_state_that_is_not_known_can_be_given():
    made = MadeRoom()
    lost, kept = made.topic("lost"), made.message()
    made.events.remove(lost)
    above = made.topic("t")
    assert history(made, lambda *_: None, 1_000).state_after({above.event_id}) is None

    def give(states, event):
        if event.event_id == kept.event_id:
            states.after[event.event_id] = states.builder.add_full({("m.room.create", ""): made.events[0].event_id})

    found = history(made, give, 1_000).state_after({above.event_id})
    assert found == {("m.room.create", ""): made.events[0].event_id, TOPIC: above.event_id}


def test_the_states_after_several_events_are_resolved():
    made = MadeRoom()
    one, other = made.topic("1", prev=[made.alice]), made.state("m.room.name", "", {}, prev=[made.alice])
    found = history(made, lambda *_: None, 1_000)
    both = found.state_after({one.event_id, other.event_id})
    assert both[TOPIC] == one.event_id and both["m.room.name", ""] == other.event_id
    assert found.state_after({one.event_id, "$nothing"}) is None
