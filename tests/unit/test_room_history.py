"""A room's history as rows, against a real server's answers and on small made rooms."""

import time
from collections import defaultdict
from functools import cache

import pytest

from events.errors import HistoryError
from events.parsing import parse_line
from events.room_history import EVENT_COLUMNS, RoomResult, room_history
from tests.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.room_data import ROOM_NAMES, event_lines, oracle


@cache
def history(room):
    return room_history([parse_line(line) for line in event_lines(room)])


def expanded(result: RoomResult):
    """Group -> full state, from the rows alone."""
    deltas = defaultdict(dict)
    for _, group, event_type, state_key, event_id in result.group_deltas:
        deltas[group][event_type, state_key] = event_id
    states = {}
    for group, prev, *_ in result.groups:
        whole = {**(states[prev] if prev is not None else {}), **deltas[group]}
        states[group] = {key: event_id for key, event_id in whole.items() if event_id is not None}
    return states


def state_after(made, event):
    """The full state after an event of a made room, or None where there is no group."""
    result = room_history(made.events)
    group = dict(result.event_groups).get(event.event_id)
    return None if group is None else expanded(result)[group]


def column(result, name):
    at = EVENT_COLUMNS.index(name)
    return {row[0]: row[at] for row in result.events}


# --- real rooms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_every_known_state_is_the_real_servers(room):
    rows = oracle(room, "state_groups")
    theirs = {}
    for row in sorted((row for row in rows if row["kind"] == "group"), key=lambda row: row["state_group"]):
        delta = {(event_type, key): event_id for event_type, key, event_id in row["delta"]}
        theirs[row["state_group"]] = {**theirs.get(row["prev_group"], {}), **delta}
        if len(theirs) > 100:
            break  # known states lie at the beginning
    group_of = {row["event_id"]: row["state_group"] for row in rows if row["kind"] == "event"}
    ours = expanded(history(room))
    for event_id, group in history(room).event_groups:
        assert ours[group] == theirs[group_of[event_id]]


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_every_event_has_a_known_state_or_is_marked(room):
    result = history(room)
    unresolved, outlier = column(result, "state_unresolved"), column(result, "outlier")
    grouped = {event_id for event_id, _ in result.event_groups}
    assert all((event_id in grouped) != (unresolved[event_id] or outlier[event_id]) for event_id in unresolved)
    assert result.unresolved_events == sum(unresolved.values())


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_extremities_are_the_real_servers(room):
    answer = oracle(room, "extremities")
    assert sorted(history(room).forward_extremities) == sorted(answer["forward"])
    assert sorted(history(room).backward_extremities) == sorted(answer["backward"])


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_current_state_is_the_real_servers_or_marked_unresolved(room):
    result = history(room)
    if result.current_state_unresolved:
        assert (result.current_state, result.state_deltas) == ([], [])
    else:
        assert sorted(row[:3] for row in result.current_state) == sorted(
            map(tuple, oracle(room, "current_state")["state"])
        )


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_only_events_that_the_real_server_serves_redacted_are_flagged(room):
    flagged = column(history(room), "redacted_by")
    answers = [answer for answer in oracle(room, "redactions") if answer["kind"] == "event"]
    assert not [answer["event_id"] for answer in answers if flagged[answer["event_id"]] and not answer["redacted"]]


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_order_of_arrival_does_not_change_what_is_known(room):
    forward = history(room)
    backward = room_history([parse_line(line) for line in reversed(event_lines(room))])
    assert {event_id for event_id, _ in forward.event_groups} == {event_id for event_id, _ in backward.event_groups}
    assert sorted(forward.forward_extremities) == sorted(backward.forward_extremities)


# --- made rooms ---------------------------------------------------------------------------------------------------


def test_message_shares_the_group_and_state_event_adds_one_entry():
    made = MadeRoom()
    message, topic = made.message(), made.topic("t")
    groups = dict(room_history(made.events).event_groups)
    assert groups[message.event_id] == groups[made.alice.event_id] != groups[topic.event_id]
    assert state_after(made, topic) == state_after(made, message) | {("m.room.topic", ""): topic.event_id}


def test_merge_of_message_forks_has_the_one_state():
    made = MadeRoom()
    one, other = made.message(prev=[made.alice]), made.message(prev=[made.alice], sender=BOB)
    merge = made.message(prev=[one, other])
    assert state_after(made, merge) == state_after(made, made.alice)
    assert room_history(made.events).unresolved_events == 0


def test_merge_of_different_states_is_marked_with_all_above_and_never_guessed():
    made = MadeRoom()
    one, other = made.topic("1", prev=[made.alice]), made.topic("2", prev=[made.alice])
    merge = made.message(prev=[one, other])
    above = made.topic("3")
    result = room_history(made.events)
    marked = {event_id for event_id, unresolved in column(result, "state_unresolved").items() if unresolved}
    assert marked == {merge.event_id, above.event_id}
    assert result.current_state_unresolved and result.visibility_unresolved
    assert (result.current_state, result.state_deltas, result.visibility) == ([], [], [])


def test_event_with_a_missing_prev_event_is_unresolved_and_a_gap():
    made = MadeRoom()
    made.message(prev=["$gone"])
    result = room_history(made.events)
    assert result.unresolved_events == 1
    assert result.backward_extremities == ["$gone"]


def test_outlier_has_no_edges_no_group_and_is_a_gap_below_others():
    made = MadeRoom()
    outlier = made.message(outlier=True)
    made.message(prev=[outlier])
    result = room_history(made.events)
    assert outlier.event_id not in dict(result.event_groups) | dict(result.edges)
    assert column(result, "state_unresolved")[outlier.event_id] is False
    assert result.backward_extremities == [outlier.event_id]


def test_rejected_state_event_changes_no_state_and_is_no_leaf():
    made = MadeRoom()
    rejected = made.topic("no", rejected_reason="auth")
    message = made.message(prev=[rejected])
    assert state_after(made, rejected) == state_after(made, message) == state_after(made, made.alice)
    assert room_history(made.events).forward_extremities == [message.event_id]


def test_soft_failed_event_has_a_state_of_its_own_and_is_no_leaf():
    made = MadeRoom()
    failed = made.topic("late", soft_failed=True)
    assert state_after(made, failed)["m.room.topic", ""] == failed.event_id
    result = room_history(made.events)
    assert result.forward_extremities == [made.alice.event_id]
    assert ("m.room.topic", "") not in {row[:2] for row in result.current_state}


def test_backfilled_parent_that_comes_with_the_batch_makes_the_state_known():
    made = MadeRoom()
    old = made.message(stream_ordering=-3)
    made.message(prev=[old], stream_ordering=9)
    result = room_history([made.events[2], *made.events[:2], made.events[3]])
    assert result.unresolved_events == 0
    assert result.events[0][0] == old.event_id


def test_state_deltas_tell_how_the_current_state_grew():
    made = MadeRoom()
    first, second = made.topic("1"), made.topic("2")
    deltas = room_history(made.events).state_deltas
    assert deltas[-2:] == [
        (2, "m.room.topic", "", first.event_id, None),
        (3, "m.room.topic", "", second.event_id, first.event_id),
    ]
    assert [row[0] for row in deltas] == [0, 1, 2, 3]


def test_state_deltas_wait_while_leaves_disagree():
    made = MadeRoom()
    late = made.topic("1", prev=[made.alice])
    other = made.message(prev=[made.alice])
    made.message(prev=[late])
    result = room_history(made.events)
    assert result.current_state_unresolved and set(result.forward_extremities) == {
        made.events[-1].event_id,
        other.event_id,
    }


def test_replayed_deltas_give_the_current_state():
    made = MadeRoom()
    for number in range(5):
        made.topic(str(number))
        made.member(BOB, "join" if number % 2 == 0 else "leave")
        made.message()
    result = room_history(made.events)
    replayed = {}
    for _, event_type, state_key, event_id, before in result.state_deltas:
        assert replayed.get((event_type, state_key)) == before
        replayed[event_type, state_key] = event_id
    assert replayed == {(row[0], row[1]): row[2] for row in result.current_state}


def test_current_state_carries_memberships():
    made = MadeRoom()
    made.member(BOB, "invite", sender=ALICE)
    members = {row[1]: row[3] for row in room_history(made.events).current_state if row[0] == "m.room.member"}
    assert members == {ALICE: "join", BOB: "invite"}


def test_edges_and_auth_events_are_kept_auth_for_state_only():
    made = MadeRoom()
    topic = made.send({"type": "m.room.topic", "state_key": "", "auth_events": [made.create.event_id]})
    message = made.send({"type": "m.room.message", "auth_events": [made.create.event_id]})
    result = room_history(made.events)
    assert (message.event_id, topic.event_id) in result.edges
    assert dict(result.auth)[topic.event_id] == [made.create.event_id]
    assert message.event_id not in dict(result.auth)


@pytest.mark.parametrize(
    "sender, applies", [(ALICE, True), ("@other:b.test", True), (EVE, False)], ids=["power", "own server", "neither"]
)
@pytest.mark.parametrize("version", ["10", "11", "12"])
def test_redaction_applies_with_power_or_from_the_same_server(version, sender, applies):
    made = MadeRoom(version)
    target = made.message(sender=BOB)
    redaction = made.redaction(target, sender=sender)
    flagged = column(room_history(made.events), "redacted_by")[target.event_id]
    assert flagged == (redaction.event_id if applies else None)


def test_redaction_before_its_target_applies():
    made = MadeRoom()
    target = made.message()
    redaction = made.redaction(target)
    arrived = [*made.events[:2], redaction, target]
    assert column(room_history(arrived), "redacted_by")[target.event_id] == redaction.event_id


@pytest.mark.parametrize("flags", [{"rejected_reason": "x"}, {"soft_failed": True}, {"outlier": True}], ids=str)
def test_redaction_that_was_not_accepted_does_not_apply(flags):
    made = MadeRoom()
    target = made.message()
    made.redaction(target, **flags)
    assert column(room_history(made.events), "redacted_by")[target.event_id] is None


def test_create_event_is_never_redacted():
    made = MadeRoom()
    made.redaction(made.create)
    assert set(column(room_history(made.events), "redacted_by").values()) == {None}


def test_room_knows_its_creator():
    made = MadeRoom()
    result = room_history(made.events)
    assert (result.creator, result.create_event_id, result.room_version) == (ALICE, made.create.event_id, "10")


def test_room_without_its_create_event_is_all_unresolved():
    made = MadeRoom()
    made.message()
    result = room_history(made.events[1:])
    assert (result.creator, result.unresolved_events) == (None, 2)
    assert result.current_state_unresolved and result.backward_extremities == [made.create.event_id]


def test_two_rooms_are_refused():
    with pytest.raises(HistoryError, match="2 rooms"):
        room_history([*MadeRoom().events, *MadeRoom(room_id="!other:a.test").events])


def test_event_given_twice_is_refused():
    made = MadeRoom()
    with pytest.raises(HistoryError, match="twice"):
        room_history([*made.events, made.create])


def test_many_forks_take_linear_time():
    made = MadeRoom()
    messages = [made.message(prev=[made.alice]) for _ in range(3000)]
    made.message(prev=messages[:1000])
    begun = time.perf_counter()
    result = room_history(made.events)
    assert time.perf_counter() - begun < 1
    assert len(result.forward_extremities) == 2001
    assert result.unresolved_events == 0
