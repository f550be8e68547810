"""A room's history as rows, on small made rooms; `tests/oracle` holds real ones against a real server's answers."""

import weakref
from collections import defaultdict

import pytest
from msgspec.structs import replace

from events.columns import EVENT_COLUMNS
from events.errors import HistoryError
from events.history.rows import RoomHistory
from events.room.state_assignment import CYCLE
from streams.runtime.gc_pause import collector_paused
from tests.support.growth import growth
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom, public_room
from tests.support.room_results import GivenEvents, RoomResult, room_history


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


def test_merge_of_different_states_is_resolved():
    made = MadeRoom()
    one, other = made.topic("1", prev=[made.alice]), made.state("m.room.name", "", {}, prev=[made.alice])
    merge, above = made.message(prev=[one, other]), made.topic("3")
    both = {("m.room.topic", ""): one.event_id, ("m.room.name", ""): other.event_id}
    assert state_after(made, merge) == state_after(made, made.alice) | both
    assert state_after(made, above) == state_after(made, merge) | {("m.room.topic", ""): above.event_id}
    assert room_history(made.events).unresolved_events == 0


def test_group_below_that_of_a_state_event_is_the_state_before_it():
    made = MadeRoom()
    one, other = made.topic("1", prev=[made.alice]), made.state("m.room.name", "", {}, prev=[made.alice])
    above = made.topic("3", prev=[one, other])
    result = room_history(made.events)
    group = dict(result.event_groups)[above.event_id]
    before = expanded(result)[result.groups[group][1]]
    assert before[("m.room.topic", "")] == one.event_id and before[("m.room.name", "")] == other.event_id


def test_states_that_no_event_has_are_not_stored():
    made = MadeRoom()
    made.topic("1", prev=[made.alice])
    made.state("m.room.name", "", {}, prev=[made.alice])
    result = room_history(made.events)
    assert len(result.groups) == len({group for _, group in result.event_groups}) == 4
    assert {row[:2] for row in result.current_state} >= {("m.room.topic", ""), ("m.room.name", "")}
    assert [row[0] for row in result.groups] == [0, 1, 2, 3]


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


def test_state_deltas_follow_the_resolution_of_leaves():
    made = MadeRoom()
    topic = made.topic("1", prev=[made.alice])
    name = made.state("m.room.name", "", {}, prev=[made.alice])
    deltas = room_history(made.events).state_deltas
    assert deltas[-2:] == [
        (2, "m.room.topic", "", topic.event_id, None),
        (3, "m.room.name", "", name.event_id, None),
    ]


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


@pytest.mark.speed
def test_many_forks_take_linear_time():
    def make(size):
        made = MadeRoom()
        messages = [made.message(prev=[made.alice]) for _ in range(3 * size)]
        made.message(prev=messages[:size])

        def found():
            result = room_history(made.events)
            assert len(result.forward_extremities) == 2 * size + 1
            assert result.unresolved_events == 0

        return found

    assert growth(make, 150) < 10


@pytest.mark.speed
def test_many_leaves_of_different_states_are_resolved_once_in_the_end():
    """Resolving them after each leaf takes a time that grows with the square of their number."""

    def make(size):
        made = MadeRoom()
        names = [made.state("x", str(number), {}, prev=[made.alice]) for number in range(size)]

        def found():
            result = room_history(made.events)
            assert len(result.current_state) == size + 2 and len(result.forward_extremities) == size
            replayed = {(kind, key): event_id for _, kind, key, event_id, _ in result.state_deltas}
            assert replayed == {row[:2]: row[2] for row in result.current_state}
            assert replayed["x", str(size - 1)] == names[-1].event_id

        return found

    assert growth(make, 75) < 10


def test_room_without_leaves_has_no_current_state():
    made = MadeRoom()
    rejected = made.message(rejected_reason="x", prev=["$gone"])
    result = room_history([rejected])
    assert result.current_state_unresolved and result.forward_extremities == []


# --- verdicts -----------------------------------------------------------------------------------------------------


def verdicts(made, events=None):
    """Event -> "rejected", "soft-failed" or "accepted"."""
    result = room_history(events or made.events)
    reasons, soft = column(result, "rejected_reason"), column(result, "soft_failed")
    words = {True: "rejected", False: "accepted"}
    return {e: "soft-failed" if soft[e] and not reasons[e] else words[reasons[e] is not None] for e in reasons}


def ruled_room():
    made = MadeRoom(ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.member(BOB, "join")
    return made


def test_proper_events_are_accepted_without_being_told():
    made = ruled_room()
    made.message(sender=BOB)
    assert set(verdicts(made).values()) == {"accepted"}
    assert room_history(made.events).rejected_events == 0


def test_event_that_its_auth_events_do_not_allow_is_rejected_with_the_reason():
    made = ruled_room()
    stranger = made.message(sender=EVE)
    result = room_history(made.events)
    assert column(result, "rejected_reason")[stranger.event_id] == f"auth events: {EVE} is not joined"
    assert result.rejected_events == 1


def test_event_that_only_the_state_before_it_refuses_is_rejected():
    made = ruled_room()
    bob = made.events[-1]
    made.member(BOB, "ban", sender=ALICE)
    auth = [made.create.event_id, made.events[2].event_id, bob.event_id]
    banned = made.send({"type": "m.room.message", "sender": BOB, "auth_events": auth})
    assert column(room_history(made.events), "rejected_reason")[banned.event_id].startswith("state before: ")


def test_what_names_a_rejected_auth_event_is_rejected_too():
    made = ruled_room()
    levels = {"users": {BOB: 100}}
    rejected = made.send({"type": "m.room.power_levels", "state_key": "", "sender": BOB, "content": levels})
    above = made.message()
    found = verdicts(made)
    assert (found[rejected.event_id], found[above.event_id]) == ("rejected", "rejected")


def test_verdicts_that_were_given_are_taken_over():
    made = ruled_room()
    stranger = made.message(sender=EVE, rejection_given=True)
    fine = made.message(prev=[made.events[-2]], rejected_reason="said so", rejection_given=True)
    found = verdicts(made)
    assert (found[stranger.event_id], found[fine.event_id]) == ("accepted", "rejected")


def test_late_event_of_a_banned_user_soft_fails_and_what_it_builds_on_stays_a_leaf():
    made = ruled_room()
    bob = made.events[-1]
    ban = made.member(BOB, "ban", sender=ALICE)
    late = made.message(prev=[bob], sender=BOB)
    result = room_history(made.events)
    assert verdicts(made)[late.event_id] == "soft-failed"
    assert result.forward_extremities == [ban.event_id]


@pytest.mark.parametrize("told", [{"soft_failure_given": True}, {"stream_ordering": -5}], ids=["given", "backfilled"])
def test_soft_failure_is_not_asked_of_what_was_told_or_is_old(told):
    made = ruled_room()
    bob = made.events[-1]
    made.member(BOB, "ban", sender=ALICE)
    late = made.message(prev=[bob], sender=BOB, **told)
    assert verdicts(made)[late.event_id] == "accepted"


def test_events_that_come_before_their_prev_events_wait_for_them():
    made = ruled_room()
    bob = made.events[-1]
    made.member(BOB, "ban", sender=ALICE)
    late = made.message(prev=[bob], sender=BOB)
    shuffled = [event for event in made.events if event != bob] + [bob]
    assert verdicts(made, shuffled)[late.event_id] == "soft-failed"
    indexes = [row[0] for row in room_history(shuffled).state_deltas]
    assert indexes == sorted(indexes) and indexes[-1] == len(shuffled) - 1


def test_event_on_top_of_a_backfilled_one_is_not_asked_for_soft_failure():
    made = ruled_room()
    bob = made.events[-1]
    made.member(BOB, "ban", sender=ALICE)
    old = made.message(prev=[bob], sender=BOB, stream_ordering=-3)
    late = made.message(prev=[old], sender=BOB)
    assert verdicts(made)[late.event_id] == "accepted"


@pytest.mark.parametrize("chunk", [1, 100])
def test_a_backfilled_event_that_nothing_stands_on_is_no_leaf_where_there_are_live_ones(chunk):
    made = ruled_room()
    below = made.events[-1]
    made.member(EVE, "join", prev=[below], stream_ordering=-3)
    live = made.message(prev=[below])
    result = room_history(made.events, chunk)
    assert result.forward_extremities == [live.event_id]
    assert EVE not in {state_key for _, state_key, _, _ in result.current_state}


@pytest.mark.parametrize("ordered", [True, False])
def test_what_a_backfilled_event_connects_is_no_leaf_from_the_live_event_above_on(ordered):
    made = ruled_room()
    below = made.events[-1]
    made.message(prev=[made.message(prev=[below], stream_ordering=-3)], stream_ordering=-2)
    old = made.events[-1]
    topic = made.state("m.room.topic", "", {"topic": "t"}, prev=[old])
    result = room_history(made.events if ordered else made.events[::-1])
    assert result.forward_extremities == [topic.event_id]


def test_a_room_of_backfilled_events_alone_has_leaves():
    made = ruled_room()
    history = [replace(event, stream_ordering=number - 100) for number, event in enumerate(made.events)]
    assert room_history(history).forward_extremities == [made.events[-1].event_id]


def test_event_that_lists_no_auth_events_is_judged_by_the_state_alone():
    made = ruled_room()
    fine = made.send({"type": "m.room.message", "auth_events": []})
    stranger = made.send({"type": "m.room.message", "auth_events": [], "sender": EVE})
    found = verdicts(made)
    assert (found[fine.event_id], found[stranger.event_id]) == ("accepted", "rejected")


def test_event_with_missing_auth_events_and_missing_prev_events_is_not_judged():
    made = ruled_room()
    above = made.send({"type": "m.room.message", "sender": EVE, "auth_events": ["$gone"]}, prev=["$lost"])
    assert verdicts(made)[above.event_id] == "accepted"
    assert room_history(made.events).unresolved_events == 1


def test_outlier_is_judged_by_its_auth_events():
    made = ruled_room()
    outlier = made.message(sender=EVE, outlier=True)
    assert verdicts(made)[outlier.event_id] == "rejected"


def test_room_has_one_create_event():
    made = ruled_room()
    other = made.state("m.room.create", "", {"room_version": "10", "creator": ALICE, "x": 1}, prev=[])
    result = room_history(made.events)
    assert column(result, "rejected_reason")[other.event_id].startswith("create: ")
    assert not result.current_state_unresolved


def test_cycle_of_chosen_ids_rejects_those_on_it_only():
    made = MadeRoom("2", ruled=True)
    one = made.send({"type": "m.room.message", "event_id": "$one:a", "prev_events": [["$two:a", {}]]})
    two = made.send({"type": "m.room.message", "event_id": "$two:a", "prev_events": [["$one:a", {}]]})
    above = made.send({"type": "m.room.message", "event_id": "$above:a", "prev_events": [["$one:a", {}]]})
    result = room_history(made.events)
    reasons = column(result, "rejected_reason")
    assert reasons[one.event_id] == reasons[two.event_id] == CYCLE
    assert reasons[above.event_id] is None and result.unresolved_events == 3
    assert reasons[made.alice.event_id] is None


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("version", ["1", "10", "11"])
def test_a_create_event_of_another_server_than_the_room_is_rejected_wherever_it_comes(version, first):
    made = public_room(version)
    other = MadeRoom(version, made.room_id, ruled=True)
    parts = {"type": "m.room.create", "state_key": "", "sender": EVE, "event_id": "$squat:e.test"}
    squat = other.send({**parts, "content": {"room_version": version, "creator": EVE}}, prev=[])
    result = room_history([squat, *made.events] if first else [*made.events, squat])
    assert result.create_event_id == made.create.event_id
    rejected = column(result, "rejected_reason")
    assert [event_id for event_id, reason in rejected.items() if reason is not None] == [squat.event_id]
    assert "different servers" in rejected[squat.event_id]


def test_a_history_is_freed_without_the_collector():
    """A task of an import computes many rooms one after the other while the collector pauses."""
    made = public_room()
    fork = made.message(prev=[made.events[-1]])
    made.message(prev=[made.events[-2], fork])
    with collector_paused():
        history = RoomHistory(GivenEvents(made.events))
        for rows in (history.events(), history.state_deltas(), history.visibility()):
            list(rows)
        gone = [weakref.ref(found) for found in (history, history.walk, history.states)]
        del history, rows
        assert [found() for found in gone] == [None] * 3
