"""Ranges against the rule judged event by event, on rooms with random forks."""

from itertools import pairwise

from hypothesis import given, settings

from events.visibility.viewer import Viewer
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
