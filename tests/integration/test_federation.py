"""History for other servers: walks, limits, pruned forms, hostile questions."""

import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from events.errors import BadToken, InvalidQuery, StateUnresolved, UnknownEvent, UnknownRoom
from events.federation.queries import auth_chain, backfill, missing_events, state_ids, topological_walk
from events.federation.visibility import server_in_room, server_verdicts
from events.models import ErasedUser
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db


def ids(events):
    return [event.event_id for event in events]


@pytest.fixture
def fork():
    """A room with a fork of two messages, merged, and its events by name."""
    made = MadeRoom()
    low = made.message()
    left, right = made.message(prev=[low]), made.message(prev=[low])
    top = made.message(prev=[left, right])
    store_room(made.events)
    return made, low, left, right, top


def test_backfill_goes_down_from_the_events_given(fork):
    made, low, left, right, top = fork
    wanted = [top, right, left, low, made.alice, made.create]
    assert ids(backfill("a.test", made.room_id, [top.event_id])) == ids(wanted)
    assert ids(backfill("a.test", made.room_id, [left.event_id], limit=2)) == ids([left, low])


def test_backfill_gives_at_most_100_events_in_few_queries():
    made = MadeRoom()
    for _ in range(150):
        made.message()
    store_room(made.events)
    with CaptureQueriesContext(connection) as queries:
        found = backfill("a.test", made.room_id, [made.events[-1].event_id], limit=10_000)
    assert ids(found) == ids(reversed(made.events[-100:])) and len(queries) < 10


def test_backfill_stays_in_the_room(fork):
    made, *_ = fork
    other = MadeRoom(room_id="!other:a.test")
    message = other.message()
    store_room(other.events, first_position=100)
    assert backfill("a.test", made.room_id, [message.event_id, "$gone"]) == []


def test_rejected_events_are_walked_through_and_outliers_are_not():
    made = MadeRoom()
    rejected = made.message(rejected_reason="no")
    outlier = made.message(outlier=True, prev=[made.alice])
    top = made.message(prev=[rejected, outlier])
    store_room(made.events)
    assert ids(backfill("a.test", made.room_id, [top.event_id])) == ids([top, made.alice, made.create])


def test_missing_events_lie_between_both_ends(fork):
    made, low, left, right, top = fork
    room, between = made.room_id, ids([left, right])
    assert ids(missing_events("a.test", room, [low.event_id], [top.event_id])) == between
    assert ids(missing_events("a.test", room, [left.event_id], [top.event_id], limit=1)) == ids([right])
    assert ids(missing_events("a.test", room, [], [top.event_id], min_depth=3)) == ids([low, left, right])


def test_missing_events_prefer_what_is_near(fork):
    made, low, left, right, top = fork
    assert ids(missing_events("a.test", made.room_id, [], [top.event_id], limit=3)) == ids([low, left, right])


def closed_room(setting):
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": setting})
    before = made.message()
    made.member(BOB, "invite", sender=ALICE)
    invited = made.message()
    made.member(BOB, "join")
    joined = made.message()
    made.member(BOB, "leave")
    after = made.message()
    store_room(made.events)
    return made, ids([before, invited, joined, after])


@pytest.mark.parametrize(
    "setting, seen",
    [("shared", "1111"), ("world_readable", "1111"), ("invited", "0110"), ("joined", "0010"), (5, "1111")],
)
def test_servers_see_what_their_users_were_there_for(setting, seen):
    made, messages = closed_room(setting)
    given = {e.event_id: e for e in backfill("b.test", made.room_id, [made.events[-1].event_id])}
    assert len(given) == len(made.events)
    assert "".join("0" if given[m].pruned else "1" for m in messages) == seen
    bodies = ["body" in json.loads(given[m].federation_json())["content"] for m in messages]
    assert "".join("01"[body] for body in bodies) == seen


def test_ports_belong_to_the_servers_name():
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.member("@eve:b.test:8448", "join")
    message = made.message()
    store_room(made.events)
    rules = {
        name: server_verdicts(name, [message.event_id])[message.event_id].rule
        for name in ("b.test:8448", "8448", "b.test")
    }
    assert rules == {"b.test:8448": "joined", "8448": "not_visible", "b.test": "not_visible"}
    assert server_in_room("b.test:8448", made.room_id) and not server_in_room("8448", made.room_id)


def test_events_of_erased_senders_go_out_pruned():
    made = MadeRoom()
    message = made.message()
    store_room(made.events)
    ErasedUser.objects.create(user_id=ALICE)
    assert [e.pruned for e in backfill("a.test", made.room_id, [message.event_id], limit=1)] == [True]


def test_server_whose_users_left_is_in_the_room_no_more():
    made, _ = closed_room("shared")
    assert not server_in_room("b.test", made.room_id) and server_in_room("a.test", made.room_id)
    assert not server_in_room("a.test", "!gone:a") and not server_in_room("a\0", made.room_id)


def test_walk_gives_every_event_in_topological_order(fork):
    made, *_ = fork
    soft = MadeRoom(room_id="!soft:a.test")
    soft.message(soft_failed=True)
    soft.message(rejected_reason="no")
    store_room(soft.events, first_position=100)
    assert ids(topological_walk(made.room_id)) == ids(made.events)
    assert ids(topological_walk(soft.room_id)) == ids(soft.events[:3])


def test_walk_goes_on_where_it_was_left(fork, monkeypatch):
    monkeypatch.setattr("events.federation.queries._PAGE", 2)
    made, *_ = fork
    whole = list(topological_walk(made.room_id, "a.test"))
    assert ids(whole) == ids(made.events)
    assert ids(topological_walk(made.room_id, after=whole[2].token)) == ids(made.events[3:])


def test_state_for_a_server_is_that_before_the_event():
    made = MadeRoom(ruled=True)
    topic = made.topic("x")
    message = made.message()
    store_room(made.events)
    assert set(state_ids(topic.event_id).state) == set(ids([made.create, made.alice]))
    assert set(state_ids(message.event_id).state) == set(ids([made.create, made.alice, topic]))
    assert state_ids(made.create.event_id).state == ()
    assert set(state_ids(message.event_id).auth_chain) == set(ids([made.create, made.alice]))


@pytest.mark.parametrize("version", ["10", "12"])
def test_auth_chain_ends_at_the_create_event(version):
    made = MadeRoom(version, ruled=True)
    topic = made.topic("x")
    message = made.message()
    store_room(made.events)
    for event in (topic, message):
        assert set(auth_chain(event.event_id)) == set(ids([made.create, made.alice]))
    assert auth_chain(made.create.event_id) == []


def test_outlier_has_no_state_to_tell():
    made = MadeRoom()
    outlier = made.message(outlier=True)
    store_room(made.events)
    with pytest.raises(StateUnresolved, match="outlier"):
        state_ids(outlier.event_id)


@pytest.mark.parametrize("event_id", ["$gone", "", "$a\0b", "\ud800", "$" + "x" * 5_000])
def test_unknown_events_are_named_or_left_out(event_id):
    for question in (state_ids, auth_chain):
        with pytest.raises(UnknownEvent):
            question(event_id)
    assert server_verdicts("a", [event_id]) == {}


@pytest.mark.parametrize("room_id", ["!gone:a", "", "!a\0b", "\ud800"])
def test_unknown_rooms_are_named(room_id):
    for question in (
        lambda: backfill("a", room_id, ["$a"]),
        lambda: missing_events("a", room_id, [], ["$a"]),
        lambda: topological_walk(room_id),
    ):
        with pytest.raises(UnknownRoom):
            question()


def test_unusable_questions_are_refused(fork):
    made, *_ = fork
    many = [f"${n}" for n in range(10_000)]
    for question in (
        lambda: backfill("a", made.room_id, many),
        lambda: backfill("a", made.room_id, "$a"),
        lambda: backfill("a", made.room_id, [None]),
        lambda: backfill("a", made.room_id, ["$a"], limit=0),
        lambda: missing_events("a", made.room_id, many, ["$a"]),
        lambda: missing_events("a", made.room_id, [], ["$a"], limit=-1),
        lambda: missing_events("a", made.room_id, [], ["$a"], min_depth="5"),
        lambda: topological_walk(5),
        lambda: backfill("a\0", made.room_id, ["$a"]),
        lambda: backfill(None, made.room_id, ["$a"]),
    ):
        with pytest.raises(InvalidQuery):
            question()
    with pytest.raises(BadToken):
        topological_walk(made.room_id, after="x")
