"""Ranges against the rule judged event by event, on rooms with random forks."""

from itertools import pairwise

from hypothesis import given, settings
from msgspec.structs import replace

from events.room.graph import is_accepted
from events.room.state_assignment import RoomStates
from events.visibility.ranges import Step, visibility_rows
from events.visibility.viewer import Viewer
from state.rules.room_versions import room_version
from tests.support.effort import examples
from tests.support.generated_rooms import forked_rooms
from tests.support.made_rooms import ALICE, BOB, EVE
from tests.support.range_reader import Seen
from tests.support.room_results import room_history


@settings(deadline=None, max_examples=examples(100))
@given(forked_rooms())
def test_ranges_tell_what_the_rule_tells(made):
    result, seen = room_history(made.events), Seen(made.events)
    assert not result.visibility_unresolved
    assert seen.calls_withheld() <= seen.withheld(result.visibility)
    for user_id in (ALICE, BOB, EVE, "@stranger:z.test"):
        for viewer in (Viewer(user_id), Viewer(user_id, peeking=True), Viewer(user_id, erased=(ALICE,))):
            assert seen.by_ranges(result.visibility, viewer) == seen.by_rule(viewer), viewer


@settings(deadline=None, max_examples=examples(60))
@given(forked_rooms())
def test_ranges_of_one_kind_and_user_do_not_overlap(made):
    found = {}
    for row in room_history(made.events).visibility:
        found.setdefault((row.user_id, row.kind), []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row.first)
        assert all(row.last is None or row.first <= row.last for row in rows)
        assert all(one.last is not None and one.last < other.first for one, other in pairwise(rows))


@settings(deadline=None, max_examples=examples(60))
@given(forked_rooms(verdicts=False))
def test_ranges_of_backfilled_events_are_the_sum_of_those_of_each_event(made):
    """So ranges of a batch can be joined with stored ones, whatever events stand between them."""
    states = RoomStates(room_version(made.version), made.events)
    states.assign(made.events)
    steps = [
        Step(place, replace(event, stream_ordering=-1), states.before.get(event.event_id), after, after)
        for place, event in enumerate(map(states.events.__getitem__, (made.event_id for made in made.events)))
        if is_accepted(event) and (after := states.after[event.event_id]) is not None
    ]

    def covered(some):
        return {
            (row.user_id, row.kind, step.index)
            for row in visibility_rows(some, states.builder, states.events)
            for step in steps
            if row.first <= step.index <= row.last
        }

    apart = [part for step in steps for part in (step, None)]
    assert covered(steps) == covered(apart)
