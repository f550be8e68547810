"""Rooms that benchmarks fill: every event has the state that its room's memberships make, also where it is stored in full."""

from __future__ import annotations

import pytest
from django.db import connection

from events.models import CurrentState, Event
from script.benchmarks import filled_room
from script.benchmarks.filled_room import STATE_EVERY, Shape, fill_rooms, room_id
from state.models import StateGroup, StateGroupDelta
from state.store import full_state
from tests.support.emptying import empty_tables

pytestmark = pytest.mark.django_db(transaction=True)

SHAPES = (
    Shape(70),
    Shape(100, rooms=3),
    Shape(11 * STATE_EVERY, users=4, copy_every=3),
    Shape(3 * 9 * STATE_EVERY, rooms=3, users=4, copy_every=2),
)


@pytest.mark.parametrize("shape", SHAPES)
def test_states_are_what_the_memberships_make(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_tables()
    monkeypatch.setattr(filled_room, "_TABLES", ())  # what VACUUM does is not tested here
    fill_rooms(shape)
    assert Event.objects.count() == shape.events
    for number in range(shape.rooms):
        events = list(Event.objects.filter(room_id=room_id(number)).order_by("topological_ordering"))
        state: dict[tuple[str, str], str] = {}
        for event in events:
            if event.state_key is not None:
                state[event.type, event.state_key] = event.event_id
            assert full_state(event.state_group) == state
            group = StateGroup.objects.get(pk=event.state_group)
            assert group.keys == len(state)
            rows = StateGroupDelta.objects.filter(chain=group.chain, state_group__lte=group.pk).count()
            assert group.rows_to_read == rows
        current = CurrentState.objects.filter(room_id=room_id(number))
        assert {(one.type, one.state_key): one.event_id for one in current} == state


def test_a_second_filling_is_beside_the_first() -> None:
    empty_tables()
    filled_room.fill_room(50)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM streams_streamposition WHERE instance_name = 'filled'")
    filled_room.fill_room(60, "!other:filled.example.org")
    assert Event.objects.count() == 110
    assert Event.objects.filter(room_id="!other:filled.example.org").count() == 60
