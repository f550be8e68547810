"""The state before and after many events, in the order asked, in bounded rounds, through filters."""

import pytest

from events.errors import InvalidQuery, StateUnresolved, UnknownEvent
from events.models import Event
from events.reading import state_at as module
from events.reading.state_at import StateAt, state_at, states_at
from state.groups.filters import StateFilter
from state.models import StateGroup
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db

CREATE, TOPIC = ("m.room.create", ""), ("m.room.topic", "")


@pytest.fixture
def made():
    return MadeRoom()


def test_events_of_several_rooms_in_the_order_asked(made):
    other = MadeRoom(room_id="!other:a.test")
    topic, message = made.topic("x"), other.message()
    for number, room in enumerate((made, other)):
        store_room(room.events, first_position=2 + 100 * number)
    asked = [message.event_id, "$nowhere", topic.event_id, made.create.event_id, topic.event_id]
    found = list(states_at(asked))
    assert [answer.event_id if isinstance(answer, StateAt) else None for answer in found] == [
        message.event_id,
        None,
        topic.event_id,
        made.create.event_id,
        topic.event_id,
    ]
    assert isinstance(found[1], UnknownEvent) and "$nowhere" in str(found[1])
    assert [answer for answer in found if isinstance(answer, StateAt)] == [
        state_at(e) for e in asked if e != "$nowhere"
    ]


def test_changes_are_what_the_event_changed(made):
    one, other = made.topic("1"), made.topic("2")
    message = made.message()
    store_room(made.events)
    assert state_at(one.event_id).changes == {TOPIC: (None, one.event_id)}
    assert state_at(other.event_id).changes == {TOPIC: (one.event_id, other.event_id)}
    assert state_at(message.event_id).changes == {}
    assert state_at(made.create.event_id).changes == {CREATE: (None, made.create.event_id)}


def test_filter_counts_before_and_after(made):
    made.member(BOB, "join")
    topic = made.topic("x")
    store_room(made.events)
    members = state_at(topic.event_id, only=StateFilter.members())
    assert set(members.after) == {("m.room.member", ALICE), ("m.room.member", BOB)} and members.changes == {}
    found = state_at(topic.event_id, only=StateFilter.at([TOPIC]))
    assert (found.before, found.after) == ({}, {TOPIC: topic.event_id})


def test_events_without_a_state_say_so_each_for_itself(made):
    outlier = made.message(outlier=True)
    above = made.message(prev=["$gone"])
    store_room(made.events)
    found = list(states_at([outlier.event_id, above.event_id, "$no\0where"]))
    assert found[0] == StateAt(outlier.event_id, None, None) and found[0].changes == {}
    assert [type(answer) for answer in found[1:]] == [StateUnresolved, UnknownEvent]


def test_state_before_that_is_gone_is_not_taken_for_an_empty_one(made):
    topic = made.topic("x")
    store_room(made.events)
    StateGroup.objects.filter(pk=Event.objects.get(event_id=topic.event_id).state_group).update(prev_group=None)
    with pytest.raises(StateUnresolved, match="no longer stored"):
        state_at(topic.event_id)


def test_rounds_are_bounded_and_give_the_same(made, monkeypatch, django_assert_num_queries):
    events = [made.topic(str(number)) for number in range(20)]
    store_room(made.events)
    ids = [event.event_id for event in events]
    with django_assert_num_queries(2):
        whole = list(states_at(iter(ids)))
    monkeypatch.setattr(module, "_EVENTS_PER_ROUND", 7)
    monkeypatch.setattr(module, "_ENTRIES_PER_ROUND", 10)
    with django_assert_num_queries(
        3 + 4 + 4 + 3
    ):  # the first of a round has 2 x 3 entries, the next 3 more: two a query
        assert list(states_at(ids)) == whole


@pytest.mark.parametrize("event_id", ["$\0", "$\ud800", "", "$" + "x" * 1_000_000])
def test_what_no_column_can_hold_is_an_unknown_event(made, event_id):
    store_room(made.events)
    unknown, known = states_at([event_id, made.alice.event_id])
    assert isinstance(unknown, UnknownEvent) and len(str(unknown)) < 500 and isinstance(known, StateAt)


@pytest.mark.parametrize("event_id", [5, None, b"$a", [], {}])
def test_what_is_no_string_is_no_question(event_id):
    with pytest.raises(InvalidQuery):
        state_at(event_id)
