"""The large room through ``persist``, in batches: the tables say what the real server says."""

import pytest

from events.models import Event
from state.models import StateGroupDelta
from state.store import full_states
from tests.oracle.answers import TheirStates
from tests.oracle.test_live_path import arriving
from tests.support.persisted_rooms import current_state, extremities, gaps, incoming, persist, replayed_state, verdicts
from tests.support.room_data import oracle, stored_events
from tests.support.stored_rooms import groups_of_events

pytestmark = pytest.mark.django_db

ROOM = "large_v10"
BATCH = 500
COMPARED = 250
"""States that are compared in full; each has some hundreds of entries."""


def test_large_room_is_the_real_servers():
    events = arriving(ROOM)
    for start in range(0, len(events), BATCH):
        outcome = persist([incoming(event) for event in events[start : start + BATCH]])
        assert outcome.refused == [] and outcome.duplicates == []
    room_id = events[0].room_id
    assert_verdicts(room_id)
    answer = oracle(ROOM, "extremities")
    assert (extremities(room_id), gaps(room_id)) == (sorted(answer["forward"]), sorted(answer["backward"]))
    wanted = {(kind, key): event_id for kind, key, event_id in oracle(ROOM, "current_state")["state"]}
    assert current_state(room_id) == replayed_state(room_id) == wanted
    assert_states()
    assert StateGroupDelta.objects.count() <= 1.3 * Event.objects.count()  # theirs: 5.63


def assert_verdicts(room_id):
    """One invite was accepted only because the power level event it names had been redacted: see ``events.room.event_auth``."""
    assert verdicts(room_id) == {
        event["event_id"]: (event["rejected_reason"] is not None, event["soft_failed"]) for event in stored_events(ROOM)
    }


def assert_states():
    theirs, stored = TheirStates(ROOM), stored_events(ROOM)
    asked = [event["event_id"] for event in stored[:: len(stored) // COMPARED]]
    groups = groups_of_events(asked)
    states = full_states(set(groups.values()))
    assert [event_id for event_id in asked if states[groups[event_id]] != theirs.after(event_id)] == []
