"""States that were told with an event, in rooms of which nothing is stored but rows made here."""

from unittest.mock import patch

from events.integrity.expected_rows import StoredEvent, StoredRows, compute
from events.room import state_assignment
from tests.support.made_rooms import MadeRoom


def told_room():
    """(room, merge): two branches on an event that came with its state; one entry of that is an outlier that came last."""
    made = MadeRoom()
    ground = made.state("m.room.third_party_invite", "token", {"public_key": "x"}, outlier=True)
    leading = {"auth_events": [made.create.event_id, made.alice.event_id, ground.event_id]}
    told = made.message(prev=["$gone"])
    left = made.send({"type": "m.room.name", "state_key": "", **leading}, prev=[told])
    right = made.topic("x", prev=[told])
    merge = made.message(prev=[left, right])
    late = made.send({"type": "m.room.avatar", "state_key": "", **leading}, prev=[], outlier=True)
    state = {(event.type, event.state_key): event.event_id for event in (made.create, made.alice, late)}
    return made, told, merge, state


def rows_of(made, told, state):
    """The rows of a room; ``state`` is that of the event ``told``, and of no other."""
    rows = StoredRows(made.room_id, made.version, made.create.sender, made.create.event_id, False, False)
    for place, event in enumerate(made.events, 1):
        group = 1 if event is told else None
        verdict = event.outlier, event.rejected_reason, event.soft_failed, None, False, False, group
        rows.events.append(StoredEvent(event.event_id, place, *verdict, None, event))
    rows.groups = [(1, None, 1, 0, len(state), len(state))]
    rows.deltas = [(1, 1, *key, event_id) for key, event_id in state.items()]
    return rows


def state_at(rows, event):
    computed = compute(rows)
    return computed.states.builder.expand(computed.before[event.event_id])


def test_branches_on_a_told_state_resolve_as_full_states_do_when_parts_of_it_came_last():
    made, told, merge, state = told_room()
    rows = rows_of(made, told, state)
    near = state_at(rows, merge)
    with patch.object(state_assignment, "resolve_near", lambda *_: None):
        assert near == state_at(rows, merge)
    assert state.items() < near.items() and ("m.room.third_party_invite", "token") not in near
