"""The managers for other services answer the usual questions by an index, and write nothing unless asked to."""

import pytest
from django.apps import apps
from django.db import connection

from events.models import CurrentState, Event, EventVisibility, Room
from state.models import StateGroup, StateGroupDelta
from streams.errors import NotWritable
from streams.models import StreamPosition
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db

READING = [model for model in apps.get_models() if hasattr(model, "read")]


@pytest.fixture
def made():
    room = MadeRoom()
    room.member(BOB, "join")
    room.member(BOB, "leave")
    return room


def ids(events):
    return [event.event_id for event in events]


def test_the_models_that_others_import_have_it():
    assert {Room, Event, CurrentState, EventVisibility, StateGroup, StateGroupDelta, StreamPosition} == set(READING)


@pytest.mark.parametrize("model", READING, ids=lambda model: model.__name__)
@pytest.mark.parametrize(
    "write",
    [
        lambda rows: rows.create(),
        lambda rows: rows.bulk_create([]),
        lambda rows: rows.all().update(pk=1),
        lambda rows: rows.all().delete(),
        lambda rows: rows.get_or_create(pk=1),
        lambda rows: rows.all().update_or_create(pk=1),
        lambda rows: rows.select_for_update(),
    ],
)
def test_it_refuses_to_write_and_says_what_to_do(model, write):
    with pytest.raises(NotWritable, match=rf"{model.__name__}\.read\.writable\(\)"):
        write(model.read)


def test_it_writes_when_asked_to():
    StreamPosition.objects.create(stream="events", instance_name="w", position=1)
    assert StreamPosition.read.filter(instance_name="w").writable().update(position=2) == 1
    assert StreamPosition.read.get().position == 2


def test_positions_of_a_stream_are_a_vector_and_its_minimum():
    for name, position, state in (("a", 7, "active"), ("b", 5, "active"), ("c", 1, "retired")):
        StreamPosition.objects.create(stream="x", instance_name=name, position=position, state=state)
    assert StreamPosition.read.vector("x") == {"a": 7, "b": 5}
    assert (StreamPosition.read.linear("x"), StreamPosition.read.linear("none")) == (5, None)


def test_events_of_a_room(made):
    rejected, message = made.topic("no", rejected_reason="x"), made.message()
    store_room(made.events)
    room = Event.read.in_room(made.room_id)
    assert rejected.event_id in ids(room) and rejected.event_id not in ids(room.accepted())
    assert room.accepted().newest_first().first().event_id == message.event_id
    assert ids(room.state_events("m.room.create")) == [made.create.event_id]
    assert len(room.accepted().state_events()) == 4
    assert ids(Event.read.after(2, upto=3)) == [made.alice.event_id]
    assert set(ids(Event.read.at([message.event_id, "$none"]))) == {message.event_id}
    assert ids(Event.read.extremities_of(made.room_id)) == [message.event_id]


def test_edges_both_ways(made):
    one, other = made.message(prev=[made.alice]), made.message(prev=[made.alice])
    above = made.message(prev=[one, other])
    store_room(made.events)
    assert set(ids(Event.read.prev_events_of(above.event_id))) == {one.event_id, other.event_id}
    assert set(ids(Event.read.next_events_of(made.alice.event_id))) >= {one.event_id, other.event_id}


def test_rooms_and_members_of_the_current_state(made):
    made.message(prev=[made.events[-1], "$gone"])
    store_room(made.events[:-1])
    assert [room.room_id for room in Room.read.of_user(ALICE)] == [made.room_id]
    assert [room.room_id for room in Room.read.of_user(BOB, "leave")] == [made.room_id] and not Room.read.of_user(BOB)
    assert [entry.state_key for entry in CurrentState.read.members(made.room_id)] == [ALICE]
    assert CurrentState.read.as_state(made.room_id)["m.room.create", ""] == made.create.event_id
    assert [entry.type for entry in CurrentState.read.in_room(made.room_id, "m.room.create")] == ["m.room.create"]
    assert not Room.read.with_gaps()


def test_rooms_with_gaps_are_those_that_lack_events(made):
    made.message(prev=["$gone"])
    store_room(made.events)
    assert [room.room_id for room in Room.read.with_gaps()] == [made.room_id]


def test_groups_and_their_rows(made):
    topic = made.topic("x")
    store_room(made.events)
    group = StateGroup.read.get(pk=Event.read.get(event_id=topic.event_id).state_group)
    assert [row.event_id for row in StateGroupDelta.read.of_group(group)] == [topic.event_id]
    assert group in StateGroup.read.in_room(made.room_id) and group in StateGroup.read.built_on(group.prev_group)
    assert ids(Event.read.with_state_of(group.pk)) == [topic.event_id]


def test_ranges_are_asked_by_position_user_and_room(made):
    store_room(made.events)
    position = Event.read.get(event_id=made.events[2].event_id).stream_ordering
    kinds = {(row.user_id, row.kind) for row in EventVisibility.read.covering(made.room_id, position)}
    assert {(ALICE, "joined"), (BOB, "joined")} <= kinds
    assert {row.user_id for row in EventVisibility.read.of_user(made.room_id, BOB)} == {BOB}
    assert {row.user_id for row in EventVisibility.read.room_wide(made.room_id)} == {None}


QUESTIONS = {
    "rooms of a user": lambda: Room.read.of_user(ALICE),
    "events of a room": lambda: Event.read.in_room("!r").accepted().newest_first()[:10],
    "events after a position": lambda: Event.read.after(5, upto=9),
    "prev events": lambda: Event.read.prev_events_of("$a"),
    "next events": lambda: Event.read.next_events_of("$a"),
    "leaves": lambda: Event.read.extremities_of("!r"),
    "events of a group": lambda: Event.read.with_state_of(5),
    "members": lambda: CurrentState.read.members("!r"),
    "user's rooms": lambda: CurrentState.read.rooms_of(ALICE),
    "groups of a room": lambda: StateGroup.read.in_room("!r"),
    "groups built on one": lambda: StateGroup.read.built_on(5),
    "rows of a group": lambda: StateGroupDelta.read.of_group(StateGroup(id=6, chain=5)),
    "ranges of a user": lambda: EventVisibility.read.of_user("!r", ALICE),
    "covering ranges": lambda: EventVisibility.read.covering("!r", 5),
    "positions": lambda: StreamPosition.read.of_stream("events"),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
@pytest.mark.usefixtures("new_tables")
def test_every_question_walks_an_index(question):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    plan = question().explain()
    assert "Seq Scan" not in plan and "Index" in plan, plan
