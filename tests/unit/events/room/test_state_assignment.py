"""What judges and rules remember of one event changes nothing for the next."""

from __future__ import annotations

import random

from hypothesis import given

from events.room.graph import _in_causal_order, causal_order
from events.room.state_assignment import RoomStates
from state.rules.room_versions import room_version
from tests.support.generated_rooms import forked_rooms


class Forgetful(dict):
    """Has nothing of what it was given."""

    def get(self, key, default=None):
        return default

    def __contains__(self, key):
        return False


def verdicts(events, *, forgetful):
    states = RoomStates(room_version("10"), events)
    if forgetful:
        states.event_auth._cached = Forgetful()
        states.rules._by_sender = Forgetful()
    states.assign(events)
    return {event_id: event.rejected_reason for event_id, event in states.events.items()}


@given(forked_rooms(verdicts=False))
def test_verdicts_are_those_of_rules_that_remember_nothing(made):
    assert verdicts(made.events, forgetful=False) == verdicts(made.events, forgetful=True)


@given(forked_rooms())
def test_a_history_in_order_is_left_as_it_is_and_any_other_is_put_in_order(made):
    mixed = random.Random(len(made.events)).sample(made.events, len(made.events))
    order, left = causal_order(mixed, auth=True)
    assert not left
    ordered = [mixed[number] for number in order]
    assert _in_causal_order(ordered, True, {})
    assert causal_order(ordered, auth=True) == (list(range(len(ordered))), [])
    below = {ordered[-1].event_id: [ordered[0].event_id]}
    assert _in_causal_order(ordered, True, below)
    assert not _in_causal_order(ordered, True, {ordered[0].event_id: [ordered[-1].event_id]})
