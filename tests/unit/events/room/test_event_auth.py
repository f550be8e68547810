"""What an event is judged by is looked at as it is when the event comes in: redacted state has lost what redactions take."""

import pytest

from events.room.state_assignment import RoomStates
from state.rules.room_versions import room_version
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom


def room_with_levels(version, levels):
    """(room, the power level event): Bob, of level 0, is joined."""
    made = MadeRoom(version, ruled=True)
    own = {} if version == "12" else {ALICE: 100}
    event = made.state("m.room.power_levels", "", {"users": own, **levels})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.member(BOB, "join")
    return made, event


def verdict(made, event):
    states = RoomStates(room_version(made.version), made.events)
    states.assign(made.events)
    return states.events[event.event_id].rejected_reason


@pytest.mark.parametrize(("version", "allowed"), [("1", True), ("10", True), ("11", False), ("12", False)])
def test_redacted_power_levels_have_no_invite_level_before_version_11(version, allowed):
    made, levels = room_with_levels(version, {"invite": 50})
    before = made.member("@one:a.test", "invite", sender=BOB)
    made.redaction(levels)
    after = made.member(EVE, "invite", sender=BOB)
    assert "takes 50" in verdict(made, before)
    assert (verdict(made, after) is None) is allowed


def test_redaction_without_effect_takes_nothing():
    made, levels = room_with_levels("10", {"invite": 50, "redact": 50})
    made.redaction(levels, sender=BOB)
    assert verdict(made, made.member(EVE, "invite", sender=BOB)) is not None


def test_what_survives_a_redaction_still_counts():
    made, levels = room_with_levels("10", {"ban": 60, "events": {"m.room.topic": 70}, "state_default": 0})
    made.redaction(levels)
    topic = made.send({"type": "m.room.topic", "state_key": "", "sender": BOB})
    name = made.send({"type": "m.room.name", "state_key": "", "sender": BOB})
    assert "takes 70" in verdict(made, topic) and verdict(made, name) is None


def test_redacted_third_party_invite_has_no_keys():
    made, _ = room_with_levels("10", {})
    ground = made.state("m.room.third_party_invite", "token", {"public_key": "x" * 43})
    states = RoomStates(room_version("10"), made.events)
    states.assign(made.events)
    made.redaction(ground)
    again = RoomStates(room_version("10"), made.events)
    again.assign(made.events)
    assert states.event_auth.redacted == set() and again.event_auth.redacted == {ground.event_id}


@pytest.mark.parametrize("version", ["1", "6", "12"])
def test_levels_in_a_message_are_judged_by_their_own_content(version):
    """Power levels without a state key: of the same sender and auth events, but not of the same content."""
    made, levels = room_with_levels(version, {"users": {BOB: 60} | ({} if version == "12" else {ALICE: 100})})
    parts = {"type": "m.room.power_levels", "sender": BOB}
    refused = made.send(parts | {"content": {**levels.content, "ban": 90}})
    allowed = made.send(parts | {"content": dict(levels.content)})
    assert refused.auth_event_ids == allowed.auth_event_ids
    assert verdict(made, refused) is not None and verdict(made, allowed) is None


def test_what_is_known_to_be_redacted_later_is_asked_anew():
    made, levels = room_with_levels("10", {"invite": 50})
    ask = {"type": "m.room.third_party_invite", "sender": BOB}
    first, second = made.send(ask), made.send(ask)
    states = RoomStates(room_version("10"), made.events)
    states.assign(made.events)
    assert "takes 50" in states.events[first.event_id].rejected_reason
    states.event_auth.redacted.add(levels.event_id)
    assert states.event_auth.rejection(second, None) is None
