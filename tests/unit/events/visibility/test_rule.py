"""The rule of visibility against all combinations of the vectors."""

import pytest

from events.visibility.rule import Answer, RuleInput, effective_visibility, for_client, for_server, more_joined
from tests.support.room_data import vectors

CLIENTS = vectors("visibility/client_matrix")
SERVERS = vectors("visibility/server_matrix")


def sight(case):
    """The case as the rule sees it."""
    found = {"membership": case["membership"], "visibility": case["visibility"], "peeking": case["peeking"]}
    if case["kind"] == "message":
        return RuleInput(**found, sender_erased=case["sender_erased"])
    if case["kind"] == "own_membership":
        return RuleInput(
            "m.room.member", is_state=True, own_membership=True, membership_before=case["previous"], **found
        )
    before = case["previous_visibility"]
    return RuleInput(
        "m.room.history_visibility", is_state=True, changes_visibility=True, visibility_before=before, **found
    )


@pytest.mark.parametrize("kind", ["message", "own_membership", "visibility_change"])
def test_client_vectors(kind):
    cases = [case for case in CLIENTS if case["kind"] == kind]
    assert len(cases) > 100
    assert [case for case in cases if for_client(sight(case)).answer != case["expect"]] == []


SPECIAL = {
    "outlier: invite for the viewer": RuleInput("m.room.member", is_state=True, own_membership=True, outlier=True),
    "outlier: rejection of an invite by the viewer": RuleInput(
        "m.room.member", is_state=True, own_membership=True, outlier=True
    ),
    "message of an ignored sender, viewer joined": RuleInput(membership="join", sender_ignored=True),
    "state event of an ignored sender, viewer joined": RuleInput(
        "m.room.topic", is_state=True, membership="join", sender_ignored=True
    ),
    "message aged 50 s, room keeps 100 s, viewer joined": RuleInput(membership="join"),
    "message aged 150 s, room keeps 100 s, viewer joined": RuleInput(membership="join", expired=True),
    "state event aged 150 s, room keeps 100 s, viewer joined": RuleInput(
        "m.room.topic", is_state=True, membership="join", expired=True
    ),
    "always included and the sender erased: no pruning": RuleInput(
        is_state=True, always_included=True, sender_erased=True
    ),
    "membership of somebody else under joined, viewer never in the room": RuleInput(
        "m.room.member", is_state=True, visibility="joined"
    ),
}


@pytest.mark.parametrize("case", [case for case in CLIENTS if case["kind"] == "special"], ids=lambda case: case["name"])
def test_special_client_vectors(case):
    assert for_client(SPECIAL[case["name"]]).answer == case["expect"]


def test_server_vectors():
    for case in SERVERS:
        found = for_server(
            case["visibility"],
            case["memberships_of_target_server"],
            sender_erased=case["sender_erased"],
            state_known=not case["in_partial_state_and_remote"],
        )
        assert (found.answer is Answer.FULL) == (case["expect"] == "full"), case


@pytest.mark.parametrize(
    "hidden, rule",
    [
        (RuleInput("m.room.aliases", is_state=True, membership="join"), "type"),
        (RuleInput("org.matrix.dummy_event", membership="join"), "type"),
        (RuleInput("m.call.invite", membership="join", public_room=True), "type"),
        (RuleInput(membership="join", soft_failed=True, always_included=True), "soft_failed"),
        (RuleInput(outlier=True, membership="join"), "outlier"),
        (RuleInput(visibility="joined"), "not_visible"),
    ],
)
def test_hidden_with_the_rule(hidden, rule):
    assert (for_client(hidden).answer, for_client(hidden).rule) == (Answer.HIDDEN, rule)


def test_calls_ring_in_rooms_that_are_not_public():
    assert for_client(RuleInput("m.call.invite", membership="join")).answer is Answer.FULL


@pytest.mark.parametrize(
    "erased, answer",
    [
        (RuleInput(sender_erased=True, membership="join"), Answer.FULL),
        (RuleInput(sender_erased=True, membership="leave"), Answer.REDACTED),
        (
            RuleInput("m.room.member", True, "leave", own_membership=True, membership_before="join", sender_erased=True),
            Answer.REDACTED,
        ),
        (
            RuleInput("m.room.member", True, "ban", own_membership=True, membership_before="join", sender_erased=True),
            Answer.FULL,
        ),
        (RuleInput(sender_erased=True, visibility="joined", visibility_before="shared", changes_visibility=True), Answer.HIDDEN),
    ],
)  # fmt: skip
def test_erased_senders(erased, answer):
    assert for_client(erased).answer is answer


@pytest.mark.parametrize("value", [None, "", "nonsense", 5, ["shared"], {"a": 1}])
def test_unknown_settings_mean_shared(value):
    assert effective_visibility(value, None, changes=False) == "shared"
    assert for_client(RuleInput(visibility=value)).rule == "shared"


def test_more_open_and_more_joined_side():
    assert effective_visibility("joined", "world_readable", changes=True) == "world_readable"
    assert effective_visibility("shared", "joined", changes=True) == "shared"
    assert [more_joined("leave", "join"), more_joined(None, "ban"), more_joined("knock", "invite")] == [
        "join", "ban", "invite",
    ]  # fmt: skip
