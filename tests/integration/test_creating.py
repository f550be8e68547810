"""Talking in rooms: what is filled in, for every room version; what is not allowed; many senders and many leaves."""

import base64
import json
import threading

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.db import connections, transaction

from events.canonical import LARGEST_INTEGER, encode
from events.creating import DUMMY_EVENT, LocalRoom, NewEvent, RoomSetup, create_room
from events.errors import EventNotAllowed, EventRefused, Reason, StateUnresolved, UnknownEvent, UnknownRoom
from events.models import Event, EventEdge, EventJson, EventVisibility, Room
from events.parsing import SIZE_LIMIT_BYTES, parse_event
from events.persist import persist
from events.reading import state_at
from events.signatures import SigningKey, event_is_signed
from state.room_versions import ROOM_VERSIONS, room_version
from tests.made_rooms import MadeRoom
from tests.persisted_rooms import current_state, incoming, leaves, ranges, replayed_state

pytestmark = pytest.mark.django_db(transaction=True)

ANN, BOB, EVE = "@ann:site", "@bob:site", "@eve:else"
TEXT = "m.room.message"
VERSIONS = list(ROOM_VERSIONS)


def json_of(event_id):
    return json.loads(bytes(EventJson.objects.get(pk=event_id).json))


def prevs(event):
    """The prev events of an event as the graph knows them."""
    return set(EventEdge.objects.filter(event_id=event.event_id).values_list("prev_event_id", flat=True))


def auth_types(event, version):
    """Types and state keys of the auth events that the event lists."""
    ids = json_of(event.event_id)["auth_events"]
    ids = [entry[0] for entry in ids] if version in ("1", "2") else ids
    return sorted(Event.objects.filter(event_id__in=ids).values_list("type", "state_key"))


# --- every room version -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_three_lines_of_talk(version):
    room = create_room(ANN, version)
    room.join(BOB)
    said = room.send(BOB, TEXT, {"body": "hello"})
    stored = Event.objects.filter(room_id=room.room_id).order_by("stream_ordering")
    assert [event.type.removeprefix("m.room.") for event in stored] == [
        "create", "member", "power_levels", "join_rules", "history_visibility", "member", "message"
    ]  # fmt: skip
    assert [event.topological_ordering for event in stored] == [1, 2, 3, 4, 5, 6, 7]
    assert not any(event.rejected_reason or event.soft_failed or event.state_unresolved for event in stored)
    assert leaves(room.room_id) == [said.event_id]
    assert current_state(room.room_id) == replayed_state(room.room_id) == state_at(said.event_id).after


@pytest.mark.parametrize("version", VERSIONS)
def test_stored_bytes_are_an_event_of_that_version(version):
    room = create_room(ANN, version)
    event = json_of(room.send(ANN, TEXT, {"body": "é\0"}).event_id)
    parsed = parse_event(encode(event), event, version)
    assert parsed.content_hash_matches and parsed.room_id == room.room_id
    create = json_of(Room.objects.get().create_event_id)
    assert ("room_id" in create) is (version != "12")
    assert ("creator" in create["content"]) is (int(version) < 11)
    assert room.room_id.startswith("!") and (":" in room.room_id) is (version != "12")


@pytest.mark.parametrize("version", VERSIONS)
def test_auth_events_are_those_of_the_rule(version):
    room = create_room(ANN, version)
    create = [] if version == "12" else [("m.room.create", "")]
    levels, rules = ("m.room.power_levels", ""), ("m.room.join_rules", "")
    joined = room.join(BOB)
    assert auth_types(joined, version) == sorted([*create, levels, rules])
    assert auth_types(room.send(BOB, TEXT, {}), version) == sorted([*create, levels, ("m.room.member", BOB)])
    ban = room.ban(ANN, BOB)
    assert auth_types(ban, version) == sorted([*create, levels, ("m.room.member", ANN), ("m.room.member", BOB)])


@pytest.mark.parametrize("version", ["1", "2"])
def test_references_of_old_versions_carry_hashes(version):
    room = create_room(ANN, version)
    one, other = room.add([NewEvent(ANN, TEXT, {}), NewEvent(ANN, TEXT, {})])
    again = room.send(ANN, TEXT, {})
    from events.hashes import reference_hash

    for event, below in ((other, one), (again, other)):
        hashed = reference_hash(json_of(below.event_id), room_version(version))
        assert json_of(event.event_id)["prev_events"] == [[below.event_id, {"sha256": hashed}]]
