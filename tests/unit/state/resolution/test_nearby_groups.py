"""Groups near to each other resolve to what their full states resolve to."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.format.parsing import parse_line
from events.room import state_assignment
from state.groups.deltas import GroupBuilder, StoredGroup
from state.groups.layered import whole
from state.resolution.local_difference import Naming
from state.resolution.nearby_groups import resolve_near
from state.rules.room_versions import room_version
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


class Neighbours:
    """The events stored so far, of which a resolution reads those that it needs."""

    def __init__(self, events):
        self.events = events

    def load(self, event_ids):
        """All are in memory."""

    load_chains = load

    def naming(self, event_ids):
        states = [event for event in self.events.values() if event.state_key is not None]
        return {
            e: Naming([(o.event_id, (o.type, o.state_key)) for o in states if e in o.auth_event_ids], True)
            for e in event_ids
        }


def arrived(events, near=True):
    """Event -> its verdict and the state after it, each in a batch of its own; how often there was an answer by changes."""
    answers, known, after, create = [], {}, {}, None

    def noting(*arguments):
        answers.append(resolve_near(*arguments))
        return answers[-1]

    for event in events:
        builder = GroupBuilder()
        groups = {
            e: builder.adopt(StoredGroup(after[e], 0, len(after[e]), 1, True))
            for e in event.prev_event_ids
            if e in after
        }
        reads = Neighbours(known) if near else None
        stored = state_assignment.Stored(known, create, builder, groups, lambda _states: None, reads=reads)
        states = state_assignment.RoomStates(room_version(event.room_version), [event], stored)
        with patch.object(state_assignment, "resolve_near", noting):
            states.assign([event])
        create = states.create
        if event.event_id in states.after:
            after[event.event_id] = builder.shared(states.after[event.event_id])
    found = {e: (known[e].rejected_reason, whole(after[e]) if e in after else None) for e in known}
    return found, sum(answer is not None for answer in answers), len(answers)


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
@given(
    st.sampled_from(["1", "2", "6", "11", "12"]), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=25)
)
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
    found, answered, resolved = arrived(made.events)
    assert found == arrived(made.events, near=False)[0]
    assert answered == resolved


@settings(deadline=None, max_examples=examples(40))
@given(forked_rooms(verdicts=False, backfill=False))
def test_events_that_arrive_alone_have_the_states_of_full_resolution(made):
    found, answered, resolved = arrived(made.events)
    assert found == arrived(made.events, near=False)[0]
    assert answered == resolved


@pytest.mark.parametrize("name", ["v10_power_fork", "v12_power_fork", "v11_fork_walk"])
def test_events_of_real_rooms_that_arrive_alone_have_the_states_of_full_resolution(name):
    events = [parse_line(line) for line in event_lines(name)]
    found, answered, resolved = arrived(events)
    assert found == arrived(events, near=False)[0]
    assert answered == resolved > 0


def test_states_without_a_group_in_common_have_no_short_way():
    made = MadeRoom()
    states = state_assignment.RoomStates(state_assignment.RoomVersion("10"), made.events)
    states.assign(made.events)
    alone = [states.builder.add_full({("m.room.topic", ""): name}) for name in ("$a", "$b")]
    assert resolve_near(states.rules, states.auth_graph, states.builder, alone) is None


def test_a_stored_room_whose_events_lead_back_to_themselves_has_no_short_way():
    """Only in versions whose event IDs are not hashes: a later event may have an ID that an earlier one names."""
    made = MadeRoom("2", ruled=True)
    made.member(BOB, "join")
    states = state_assignment.RoomStates(room_version("2"), made.events)
    states.assign(made.events)
    joined, *_ = (e for e in made.events if e.state_key == BOB)
    looping = [copy_of(joined, name, [*joined.auth_event_ids, other]) for name, other in (("$a", "$b"), ("$b", "$a"))]
    states.events.update((event.event_id, event) for event in looping)
    base = states.after[made.events[-1].event_id]
    groups = [states.builder.add(base, {("m.room.member", BOB): event.event_id}) for event in looping]
    neighbours = Neighbours(states.events)
    assert resolve_near(states.rules, states.auth_graph, states.builder, groups, neighbours) is None
    straight = copy_of(joined, "$c", joined.auth_event_ids)
    states.events["$c"] = straight
    groups = [base, states.builder.add(base, {("m.room.member", BOB): "$c"})]
    assert resolve_near(states.rules, states.auth_graph, states.builder, groups, neighbours) is not None


def copy_of(event, event_id, auth_event_ids):
    return msgspec.structs.replace(event, event_id=event_id, auth_event_ids=tuple(auth_event_ids))
