"""Changes of the current state at a position of their own, which has no event: a state resolution can cause them."""

from __future__ import annotations

import pytest

from events.models import CurrentState, CurrentStateDelta, Event
from events.sending.send import RoomSetup, create_room
from events.sync.rooms import rooms_since
from streams.core.tokens import VectorToken
from tests.support.syncing import here, ids, only

pytestmark = pytest.mark.django_db

ANN, BOB = "@ann:site", "@bob:site"
TOPIC = "m.room.topic"


@pytest.fixture
def room():
    return create_room(ANN, setup=RoomSetup(join_rule="public"))


def removed(room, kind, key):
    """Removes an entry of the current state, at the position after all events. Returns the position before and that one."""
    low = here().base
    entry = CurrentState.objects.get(room_id=room.room_id, type=kind, state_key=key)
    delta = CurrentStateDelta(
        stream_ordering=low + 1,
        instance_name="master",
        room_id=room.room_id,
        type=kind,
        state_key=key,
        prev_event_id=entry.event_id,
    )
    CurrentStateDelta.objects.writable().bulk_create([delta])
    CurrentState.objects.filter(pk=entry.pk).delete()
    return VectorToken(low), VectorToken(low + 1)


def test_an_entry_that_changes_without_an_event_is_in_the_answer(room):
    room.set_state(ANN, TOPIC, {"topic": "a"})
    event = Event.objects.order_by("stream_ordering").last()
    low, now = VectorToken(event.stream_ordering), VectorToken(event.stream_ordering + 1)
    CurrentStateDelta.objects.writable().filter(event_id=event.event_id).update(stream_ordering=now.base)
    told = only(rooms_since(ANN, low, now).joined)
    assert (ids(told.state), told.timeline) == ([event.event_id], ())
    assert rooms_since(ANN, low, now, changed_rooms=[room.room_id]).joined == (told,)


def test_an_entry_that_is_removed_without_an_event_is_in_the_answer(room):
    room.set_state(ANN, TOPIC, {"topic": "a"})
    low, now = removed(room, TOPIC, "")
    assert only(rooms_since(ANN, low, now).joined).removed == ((TOPIC, ""),)
    assert not rooms_since(ANN, now, now)


def test_a_user_whom_a_resolution_removes_has_left(room):
    room.join(BOB)
    low, now = removed(room, "m.room.member", BOB)
    answer = rooms_since(BOB, low, now)
    assert (answer.joined, only(answer.left).room_id, only(answer.left).membership) == ((), room.room_id, "leave")
    assert only(rooms_since(ANN, low, now).joined).removed == (("m.room.member", BOB),)
    assert not rooms_since(BOB, now, now)
