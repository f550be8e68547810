"""States, leaves, gaps and verdicts of every stored room against the real server's answers.

Known differences stand in ``docs/reference/differences.md``.
"""

import pytest

from events.columns import EVENT_COLUMNS
from events.room.state_assignment import RoomStates
from state.resolution.resolve import resolve
from state.rules.room_versions import room_version
from tests.oracle.answers import OurStates, TheirStates, history, parsed
from tests.support.room_data import ROOM_NAMES, oracle, stored_events

SMALL_ROOMS = [room for room in ROOM_NAMES if room != "large_v10"]


def asked(room):
    """All events; of the large room every seventh and those above a merge."""
    events = stored_events(room)
    return [
        event
        for number, event in enumerate(events)
        if room != "large_v10" or number % 7 == 0 or len(event["json"]["prev_events"]) > 1
    ]


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_state_after_every_event(room):
    ours, theirs = OurStates(history(room)), TheirStates(room)
    wrong = [e["event_id"] for e in asked(room) if ours.after(e["event_id"]) != theirs.after(e["event_id"])]
    assert wrong == []
    assert history(room).unresolved_events == 0


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_state_before_every_merge(room):
    ours, theirs = OurStates(history(room)), TheirStates(room)
    stored = {event["event_id"]: event for event in stored_events(room)}
    merges = [row for row in oracle(room, "resolution") if row["kind"] == "merge"]
    assert merges
    for row in merges:
        event = stored[row["event_id"]]
        group = ours.group_of[row["event_id"]]
        changes = "state_key" in event["json"] and event["rejected_reason"] is None
        assert ours.of_group(ours.prev[group] if changes else group) == theirs.answer(row), row["event_id"]


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_state_before_an_event_of_one_prev_event_is_that_after_it(room):
    ours = OurStates(history(room))
    for event in asked(room):
        prevs = event["json"]["prev_events"]
        if len(prevs) == 1 and "state_key" in event["json"] and event["rejected_reason"] is None:
            assert ours.of_group(ours.prev[ours.group_of[event["event_id"]]]) == ours.after(prevs[0])


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_resolution_of_states_that_never_met(room):
    events, theirs = parsed(room), TheirStates(room)
    states = RoomStates(room_version(events[0].room_version), events)
    rows = [row for row in oracle(room, "resolution") if row["kind"] == "random_sets"]
    assert rows
    for row in rows:
        maps = [theirs.of_group(group) for group in row["state_groups"]]
        assert resolve(states.rules, states.auth_graph, maps) == theirs.answer(row), row["state_groups"]


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_current_state(room):
    found = history(room)
    assert not found.current_state_unresolved
    assert sorted(row[:3] for row in found.current_state) == sorted(map(tuple, oracle(room, "current_state")["state"]))


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_current_state_is_what_its_changes_add_up_to(room):
    replayed = {}
    for _, event_type, state_key, event_id, before in history(room).state_deltas:
        assert replayed.pop((event_type, state_key), None) == before
        if event_id is not None:
            replayed[event_type, state_key] = event_id
    assert replayed == {row[:2]: row[2] for row in history(room).current_state}


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_extremities(room):
    answer = oracle(room, "extremities")
    assert sorted(history(room).forward_extremities) == sorted(answer["forward"])
    assert sorted(history(room).backward_extremities) == sorted(answer["backward"])


# --- nothing told: the rules alone decide -------------------------------------------------------------------------


def verdicts(room):
    """Event -> (rejected, soft-failed), as our rules decide."""
    rejected, soft_failed = EVENT_COLUMNS.index("rejected_reason"), EVENT_COLUMNS.index("soft_failed")
    return {row[0]: (row[rejected] is not None, row[soft_failed]) for row in history(room, told=False).events}


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_the_rules_reject_and_soft_fail_what_the_real_server_did(room):
    theirs = {e["event_id"]: (e["rejected_reason"] is not None, e["soft_failed"]) for e in stored_events(room)}
    assert verdicts(room) == theirs


# --- size ---------------------------------------------------------------------------------------------------------


def test_large_room_takes_few_state_rows_per_event():
    """The real server wrote 5.63 rows per event, and 2.27 after compressing; an endless chain would need 0.85."""
    assert len(history("large_v10").group_deltas) <= 1.3 * len(history("large_v10").events)
