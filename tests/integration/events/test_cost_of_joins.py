"""A join costs as much in a room of 2,000 members as in one of 20: nothing goes through the entries of the state."""

from __future__ import annotations

import pytest

from events.sending.send import LocalRoom, NewEvent, create_room
from state.groups import deltas
from state.groups.layered import LayeredState

pytestmark = pytest.mark.django_db(transaction=True)


def filled(members: int) -> LocalRoom:
    room = create_room("@ann:site", version="11")
    users = [f"@user-{number}:site" for number in range(members)]
    joins = [NewEvent(user, "m.room.member", {"membership": "join"}, state_key=user) for user in users]
    for start in range(0, members, 500):
        room.add(joins[start : start + 500])
    return room


@pytest.mark.parametrize("members", [20, 2_000])
def test_a_join_goes_through_no_state(members, monkeypatch):
    room = filled(members)
    merged, copied = [], []

    class Counted(LayeredState):
        __slots__ = ()

        def __iter__(self):
            merged.append(1)
            return super().__iter__()

    real = deltas.whole
    monkeypatch.setattr("state.groups.layered.LayeredState", Counted)
    monkeypatch.setattr(deltas, "whole", lambda state: copied.append(len(state)) or real(state))
    for number in range(10):
        room.join(f"@new-{number}:site")
    assert (merged, copied) == ([], [])
    monkeypatch.undo()
    room.send("@new-9:site", "m.room.message", {"body": "the state knows who has joined"})
