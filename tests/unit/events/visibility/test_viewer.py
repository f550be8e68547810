"""How viewers stand to events, on the random linear rooms of the vectors."""

import pytest

from events.visibility.rule import for_client
from events.visibility.viewer import Viewer, history_visibility, membership, rule_input
from tests.support.room_data import vectors
from tests.unit.events.visibility.test_ranges import as_line

CASES = vectors("visibility/timelines")


def steps(case):
    """(event, state before, state after) of every event."""
    state = {}
    for event in as_line(case):
        before = dict(state)
        if event.state_key is not None:
            state[event.type, event.state_key] = event
        yield event, before, dict(state)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_vector(case):
    line = list(steps(case))
    for user_id, wanted in case["viewers"].items():
        for view in ("member", "peeking"):
            viewer = Viewer(user_id, view == "peeking", erased=frozenset(case["erased_senders"]))
            found = {"full": [], "redacted": [], "hidden": []}
            for number, (event, before, after) in enumerate(line):
                found[for_client(rule_input(event, viewer, before, after)).answer].append(number)
            assert (found["full"], found["redacted"]) == (wanted[view]["full"], wanted[view]["redacted"])


def test_state_without_entries_tells_nothing():
    assert history_visibility({}) is None
    assert membership({}, "@x:a") is None


def test_outlier_has_no_states():
    event = next(as_line(CASES[0]))
    sight = rule_input(event, Viewer("@x:a", ignored={event.sender}), None, None)
    assert (sight.membership, sight.visibility, sight.sender_ignored) == (None, None, True)
