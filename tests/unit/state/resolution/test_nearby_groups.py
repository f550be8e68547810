"""Groups near to each other resolve to what their full states resolve to."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.format.parsing import parse_line
from events.room import state_assignment
from state.resolution.nearby_groups import resolve_near
from tests.support.effort import examples
from tests.support.generated_rooms import forked_rooms
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.support.room_data import event_lines
from tests.support.room_results import room_history


def both_ways(events):
    """The rows of a room by changes only, and by full states; how often there was an answer by changes."""
    answers = []

    def noting(*arguments):
        answers.append(resolve_near(*arguments))
        return answers[-1]

    with patch.object(state_assignment, "resolve_near", noting):
        near = room_history(events)
    with patch.object(state_assignment, "resolve_near", lambda *_: None):
        full = room_history(events)
    return in_order(near), in_order(full), sum(answer is not None for answer in answers)


def in_order(result):
    """Rows whose order nobody asks for, sorted."""
    rows = {name: sorted(getattr(result, name), key=str) for name in ("current_state", "state_deltas", "group_deltas")}
    return replace(result, **rows)


@settings(deadline=None, max_examples=examples(40))
@given(forked_rooms(verdicts=False) | forked_rooms())
def test_rows_of_forked_rooms_are_those_of_full_states(made):
    near, full, _ = both_ways(made.events)
    assert near == full


@pytest.mark.parametrize("name", ["v10_power_fork", "v12_power_fork", "v11_fork_walk", "v10_visibility_walk"])
def test_rows_of_real_rooms_are_those_of_full_states_and_most_take_the_short_way(name):
    near, full, answered = both_ways([parse_line(line) for line in event_lines(name)])
    assert near == full
    assert answered


@settings(deadline=None, max_examples=examples(40))
@given(st.sampled_from(["2", "6", "11", "12"]), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=25))
def test_forks_about_power_resolve_alike(version, acts):
    """Bans, levels and memberships on branches that lie some events apart."""
    made = MadeRoom(version, ruled=True)
    own = {} if version == "12" else {ALICE: 100}
    made.state("m.room.power_levels", "", {"users": {**own, BOB: 90}, "state_default": 0})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    for user in (BOB, EVE):
        made.member(user, "join")
    for kind, back in acts:
        prev = [made.events[-min(back, len(made.events) - 4)]] if back < 5 else made.events[-2:]
        match kind:
            case 0:
                made.member(EVE, "ban", sender=BOB, prev=prev)
            case 1:
                made.member(EVE, "join", prev=prev)
            case 2:
                made.state(
                    "m.room.power_levels", "", {"users": {**own, BOB: 90, EVE: 50}, "state_default": 0}, prev=prev
                )
            case 3:
                made.send(
                    {"type": "m.room.topic", "state_key": "", "sender": EVE, "content": {"topic": str(back)}}, prev=prev
                )
            case 4:
                made.send(
                    {"type": "m.room.topic", "state_key": "", "sender": BOB, "content": {"topic": str(back)}}, prev=prev
                )
            case _:
                made.message(prev=prev, sender=BOB)
    near, full, _ = both_ways(made.events)
    assert near == full


def test_states_without_a_group_in_common_have_no_short_way():
    made = MadeRoom()
    states = state_assignment.RoomStates(state_assignment.RoomVersion("10"), made.events)
    states.assign(made.events)
    alone = [states.builder.add_full({("m.room.topic", ""): name}) for name in ("$a", "$b")]
    assert resolve_near(states.rules, states.auth_graph, states.builder, alone) is None
