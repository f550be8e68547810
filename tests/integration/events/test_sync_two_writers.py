"""Two writers in one room, one announced later than the other: what a client knows never goes back to an older change."""

from __future__ import annotations

import random

import pytest
from django.db import connection

from events.errors import EventNotAllowed
from events.models import CurrentState, CurrentStateDelta, Event
from events.sending.send import NewEvent, RoomSetup, create_room
from events.sync.providers import StreamQuery, providers
from events.sync.shared_rooms import SharedRooms
from streams.catalog.models import Presence
from streams.core.tokens import VectorToken
from streams.homeserver import append
from tests.support.syncing import Client, here, ids, only, since

pytestmark = pytest.mark.django_db

ANN, BOB = "@ann:site", "@bob:site"
TOPIC, NAME = "m.room.topic", "m.room.name"


@pytest.fixture
def room():
    return create_room(ANN, setup=RoomSetup(join_rule="public"))


def written_by(writer, act, *arguments):
    """Does something, and records another writer for what it stored. Returns the last event."""
    low = here().base
    act(*arguments)
    CurrentStateDelta.objects.writable().filter(stream_ordering__gt=low).update(instance_name=writer)
    Event.objects.writable().filter(stream_ordering__gt=low).update(instance_name=writer)
    return Event.objects.order_by("stream_ordering").last()


def at(slow, fast):
    """The token of two writers."""
    ahead = {"slow": slow} if slow > fast else {"fast": fast}
    return VectorToken(min(slow, fast), ahead if slow != fast else {})


def test_a_topic_does_not_go_back_to_the_one_before_it(room):
    low, client = here().base, Client(ANN)
    client.sync(here())
    older = written_by("slow", room.set_state, ANN, TOPIC, {"topic": "older"})
    newer = written_by("fast", room.set_state, ANN, TOPIC, {"topic": "newer"})
    client.sync(at(low, newer.stream_ordering))
    assert client.rooms[room.room_id][TOPIC, ""] == newer.event_id
    told = only(client.sync(here()).joined)
    assert client.rooms[room.room_id][TOPIC, ""] == newer.event_id
    assert (ids(told.timeline), told.limited) == ([], True)  # it is read backwards from ``prev_batch``
    assert older.event_id not in client.seen


def test_what_came_late_is_in_the_timeline_unless_a_known_change_replaced_it(room):
    low = here().base
    written_by("slow", room.set_state, ANN, TOPIC, {"topic": "older"})
    name = written_by("slow", room.set_state, ANN, NAME, {"name": "late"})
    said = written_by("slow", room.send, ANN, "m.room.message", {"body": "late"})
    newer = written_by("fast", room.set_state, ANN, TOPIC, {"topic": "newer"})
    told = only(since(ANN, at(low, newer.stream_ordering), here()).joined)
    assert (ids(told.timeline), told.limited, told.state) == ([name.event_id, said.event_id], True, ())


def test_a_state_that_is_overtaken_hides_no_other_change_before_it(room):
    low = here().base
    name = written_by("slow", room.set_state, ANN, NAME, {"name": "late"})
    written_by("slow", room.set_state, ANN, TOPIC, {"topic": "older"})
    newer = written_by("fast", room.set_state, ANN, TOPIC, {"topic": "newer"})
    told = only(since(ANN, at(low, newer.stream_ordering), here()).joined)
    assert (ids(told.timeline), ids(told.state)) == ([], [name.event_id])


def test_a_first_answer_has_the_newest_change_that_its_token_covers(room):
    low = here().base
    written_by("slow", room.set_state, ANN, TOPIC, {"topic": "older"})
    newer = written_by("fast", room.set_state, ANN, TOPIC, {"topic": "newer"})
    client = Client(ANN)
    client.sync(at(low, newer.stream_ordering))
    assert client.rooms[room.room_id][TOPIC, ""] == newer.event_id
    client.sync(here())
    assert client.rooms[room.room_id][TOPIC, ""] == newer.event_id


def test_a_user_who_left_is_not_joined_again_by_the_join_before(room):
    low = here().base
    written_by("slow", room.join, BOB)
    left = written_by("fast", room.leave, BOB)
    middle = at(low, left.stream_ordering)
    one, two = since(BOB, VectorToken(low), middle), since(BOB, middle, here())
    assert (only(one.left).membership, ids(only(one.left).timeline)) == ("leave", [left.event_id])
    assert not one.joined
    assert not two.joined
    assert ids(only(two.left).timeline) == []


def test_a_user_who_joined_stays_when_the_leave_before_comes_late(room):
    room.join(BOB)
    low = here().base
    written_by("slow", room.leave, BOB)
    joined = written_by("fast", room.join, BOB)
    middle = at(low, joined.stream_ordering)
    one, two = since(BOB, VectorToken(low), middle), since(BOB, middle, here())
    assert only(one.joined).whole
    assert not two.left
    assert ids(only(two.joined).timeline) == []


def test_an_invite_is_not_told_again_when_the_change_before_comes_late(room):
    room.join(BOB)
    low = here().base
    written_by("slow", room.leave, BOB)
    invited = written_by("fast", room.invite, ANN, BOB)
    middle = at(low, invited.stream_ordering)
    one, two = since(BOB, VectorToken(low), middle), since(BOB, middle, here())
    assert only(one.invited).event.event_id == invited.event_id
    assert not two


def test_a_client_holds_what_its_token_covers_whichever_writer_is_ahead():
    """In random order: at each token, each key has the newest change that the token covers."""
    chance = random.Random(7)
    rooms = [create_room(ANN, setup=RoomSetup(join_rule="public")) for _ in range(2)]
    clients = [Client(user) for user in (ANN, BOB)]
    slow = fast = here().base
    compared = 0
    for _ in range(60):
        for _ in range(chance.randint(1, 4)):
            act(chance, rooms)
        end = here().base
        slow, fast = chance.choice([slow, chance.randint(slow, end), end]), chance.choice([fast, end])
        now = at(slow, fast)
        held = {room.room_id: state_at(room.room_id, now) for room in rooms}
        memberships = {
            room_id: {
                key: Event.objects.get(event_id=event_id).membership
                for (kind, key), event_id in state.items()
                if kind == "m.room.member"
            }
            for room_id, state in held.items()
        }
        for client in clients:
            client.sync(now, chance.choice([1, 3, 50]))
            joined = {room_id for room_id, members in memberships.items() if members.get(client.user) == "join"}
            assert set(client.rooms) == joined
            # A user whose leave is stored and not announced yet sees no more events, whatever the token covers.
            here_still = {room.room_id for room in rooms if joined_now(room, client.user)} & joined
            assert {r: client.rooms[r] for r in here_still} == {r: held[r] for r in here_still}
            compared += len(here_still)
    assert compared > 100


def act(chance, rooms):
    """One change by one of the writers."""
    room, writer, text = chance.choice(rooms), chance.choice(["slow", "fast"]), str(chance.random())
    doing = chance.choice(["say", "topic", "topic", "name", "join", "leave", "leave"])
    try:
        if doing == "say":
            written_by(writer, room.add, [NewEvent(ANN, "m.room.message", {"body": text})] * chance.randint(1, 3))
        elif doing in ("topic", "name"):
            written_by(writer, room.set_state, ANN, f"m.room.{doing}", {doing: text})
        else:
            written_by(writer, getattr(room, doing), BOB)
    except EventNotAllowed:
        return


def joined_now(room, user):
    rows = CurrentState.objects.filter(room_id=room.room_id, type="m.room.member", state_key=user)
    return rows.filter(membership="join").exists()


def state_at(room_id, now):
    """The newest change of each key that the token covers."""
    changes = CurrentStateDelta.objects.filter(room_id=room_id).order_by("stream_ordering", "id")
    return {
        (change.type, change.state_key): change.event_id
        for change in changes
        if now.covers(change.instance_name, change.stream_ordering)
    }


def test_presence_does_not_go_back_to_the_one_before_it():
    (before,) = append.set_presence(Presence(user_id=ANN, state="online"))
    (older,) = append.set_presence(Presence(user_id=ANN, state="unavailable"))
    (newer,) = append.set_presence(Presence(user_id=ANN, state="offline"))
    with connection.cursor() as cursor:
        for writer, position in (("slow", older), ("fast", newer)):
            cursor.execute(
                "SET LOCAL streams.maintenance = on; UPDATE streams_presence SET instance_name = %s WHERE stream_id = %s",
                [writer, position],
            )

        def changes(low, now):
            return providers()["presence"].changes(StreamQuery(cursor, ANN, SharedRooms(frozenset()), now, low))

        middle, end = at(before, newer), VectorToken(newer)
        held = changes(VectorToken(before), middle).apply_to({})
        assert changes(middle, end).apply_to(held) == changes(None, end).changed
