"""The auth rules against the vectors, and one test for each rule that these leave open."""

import pytest

from state.rules.auth_rules import AuthRules
from state.rules.room_versions import ROOM_VERSIONS, room_version
from tests.support.room_data import vectors
from tests.support.rule_cases import MadeState, auth_keys, auth_refusal, ruled

CASES = vectors("auth/auth_rules")
C, X, FAR = "@c:a.test", "@x:a.test", "@f:b.test"


@pytest.mark.parametrize("version", sorted({case["room_version"] for case in CASES}, key=int))
def test_vectors(version):
    cases = [case for case in CASES if case["room_version"] == version]
    assert len(cases) > 70
    wrong = [case["name"] for case in cases if (auth_refusal(case) is None) != case["allowed"]]
    assert wrong == []


def test_vectors_of_auth_event_selection():
    wrong = [case["name"] for case in CASES if sorted(map(list, auth_keys(case))) != case["auth_keys"]]
    assert wrong == []


def create_refusal(version="10", sender=C, room_id="!r:a.test", **parts):
    content = {"creator": C, "room_version": version} if version in ROOM_VERSIONS else {}
    event = {"type": "m.room.create", "state_key": "", "sender": sender, "content": content, **parts}
    return AuthRules(room_version(version)).refusal(ruled(event, room_id=room_id), {})


def test_create_event_begins_a_room():
    assert all(create_refusal(version) is None for version in ROOM_VERSIONS)


@pytest.mark.parametrize(
    "parts, reason",
    [
        ({"prev_events": ["$x"]}, "prev events"),
        ({"room_id": "!r:b.test"}, "different servers"),
        ({"content": {"creator": C, "room_version": "99"}}, "'99'"),
        ({"content": {"creator": C, "room_version": 10}}, "no rules"),
        ({"content": {"room_version": "10"}}, "creator is missing"),
    ],
)
def test_create_event_is_refused(parts, reason):
    assert reason in create_refusal(**parts)


def test_creator_is_implied_from_version_11_on():
    assert create_refusal("11", content={"room_version": "11"}) is None


@pytest.mark.parametrize("named, allowed", [([], True), ([X], True), ("@x:a", False), (["x"], False), ([1], False)])
def test_additional_creators_are_user_ids(named, allowed):
    content = {"room_version": "12", "additional_creators": named}
    assert (create_refusal("12", content=content) is None) == allowed


def test_nothing_stands_without_a_create_event():
    event = ruled({"type": "m.room.topic", "state_key": "", "sender": C})
    assert "create event" in AuthRules(room_version("10")).refusal(event, {})


def test_room_id_of_version_12_is_that_of_the_create_event():
    topic = {"type": "m.room.topic", "state_key": "", "sender": C}
    assert MadeState("12").refusal(topic) is None
    assert "room ID" in MadeState("12").refusal({**topic, "room_id": "!other"})


@pytest.mark.parametrize("sender, target, allowed", [(C, X, True), (FAR, FAR, False), (C, FAR, False)])
def test_room_that_is_not_federated_keeps_other_servers_out(sender, target, allowed):
    state = MadeState(**{"m.federate": False}).join_rule("public")
    assert (state.change(sender, target, "join" if sender == target else "invite") is None) == allowed


@pytest.mark.parametrize(
    "version, state_key, allowed",
    [("5", "a.test", True), ("5", "b.test", False), ("5", "", False), ("6", "a.test", False)],
)
def test_aliases_need_no_membership_before_version_6(version, state_key, allowed):
    parts = {"type": "m.room.aliases", "state_key": state_key, "sender": X}
    assert (MadeState(version).refusal(parts) is None) == allowed


@pytest.mark.parametrize("membership", [None, "invite", "leave", "ban", "knock"])
def test_only_members_send(membership):
    state = MadeState(levels={"users_default": 100})
    if membership:
        state.member(X, membership)
    message = {"type": "m.room.message", "sender": X}
    assert "not joined" in state.refusal(message)
    assert state.member(X, "join").refusal(message) is None


def test_state_takes_50_where_nothing_is_said_and_messages_0():
    state = MadeState().member(X, "join")
    assert "takes 50" in state.refusal({"type": "m.room.topic", "state_key": "", "sender": X})
    assert state.refusal({"type": "m.room.message", "sender": X}) is None


def test_types_have_levels_of_their_own():
    state = MadeState(levels={"events": {"m.room.message": 10}, "events_default": 20, "state_default": 0})
    state.member(X, "join")
    assert "takes 10" in state.refusal({"type": "m.room.message", "sender": X})
    assert "takes 20" in state.refusal({"type": "x", "sender": X})
    assert state.refusal({"type": "x", "state_key": "", "sender": X}) is None


def test_state_keys_that_are_users_belong_to_them():
    state = MadeState(levels={"users_default": 100}).member(X, "join")
    assert state.refusal({"type": "x", "state_key": X, "sender": X}) is None
    assert "another user" in state.refusal({"type": "x", "state_key": C, "sender": X})


def test_third_party_invite_takes_the_level_of_inviting_only():
    state = MadeState(levels={"invite": 10, "state_default": 100, "users": {X: 10}}).member(X, "join")
    parts = {"type": "m.room.third_party_invite", "state_key": "@token", "sender": X}
    assert state.refusal(parts) is None
    state.put("m.room.power_levels", "", {"invite": 11, "users": {X: 10}})
    assert "invite" in state.refusal(parts)


@pytest.mark.parametrize(
    "version, redacts, allowed", [("1", "$e:a.test", True), ("2", "$e:b.test", False), ("3", "$e", True)]
)
def test_redaction_is_judged_before_version_3(version, redacts, allowed):
    state = MadeState(version, levels={}).member(X, "join")
    parts = {"type": "m.room.redaction", "sender": X, "redacts": redacts}
    assert (state.refusal(parts) is None) == allowed


def test_moderators_redact_events_of_other_servers():
    state = MadeState("1", levels={"users": {X: 50}}).member(X, "join")
    assert state.refusal({"type": "m.room.redaction", "sender": X, "redacts": "$e:b.test"}) is None


# --- the list of auth events --------------------------------------------------------------------------------------


def list_refusal(others, version="10", listed=None):
    state = MadeState(version)
    event = ruled(
        {
            "type": "m.room.topic",
            "state_key": "",
            "sender": C,
            "auth_events": [other.event_id for other in others] if listed is None else listed,
        },
        room_id=state.room_id,
    )
    return AuthRules(room_version(version)).auth_events_refusal(event, others)


CREATE = MadeState()["m.room.create", ""]
MEMBER = MadeState()["m.room.member", C]


def test_list_of_create_event_and_member_is_fine():
    assert list_refusal([CREATE, MEMBER]) is None


@pytest.mark.parametrize(
    "others, reason",
    [
        ([MEMBER], "create event is not"),
        ([CREATE, ruled({"type": "m.room.topic", "state_key": "", "sender": C})], "no say"),
        ([CREATE, ruled({"type": "m.room.member", "state_key": X, "sender": X})], "no say"),
        ([CREATE, ruled({"type": "m.room.power_levels", "sender": X})], "no say"),
        ([CREATE, MEMBER, MEMBER], "two auth events"),
        ([CREATE, ruled({"type": "m.room.member", "state_key": C, "sender": C}, rejected=True)], "rejected"),
        ([CREATE, ruled({"type": "m.room.member", "state_key": C, "sender": C}, room_id="!o:a")], "another room"),
    ],
)
def test_list_is_refused(others, reason):
    assert reason in list_refusal(others)


def test_list_of_which_something_is_missing_is_not_blamed_for_the_create_event():
    assert list_refusal([MEMBER], listed=["$gone", MEMBER.event_id]) is None


def test_version_12_does_not_list_the_create_event():
    member = MadeState("12")["m.room.member", C]
    member = ruled({"type": "m.room.member", "state_key": C, "sender": C}, member.event_id, "!create")
    assert list_refusal([member], "12") is None
    assert "no say" in list_refusal([CREATE, member], "12")


def test_create_event_lists_nothing():
    rules = AuthRules(room_version("10"))
    event = ruled({"type": "m.room.create", "state_key": "", "sender": C, "auth_events": ["$x"]})
    assert rules.auth_events_refusal(event, []) == "a create event has no auth events"
