"""Who may change whose membership: what the vectors leave open."""

import pytest

from state.rules.membership import needs_voucher
from state.rules.room_versions import room_version
from tests.support.rule_cases import MadeState

C, X, Y = "@c:a.test", "@x:a.test", "@y:b.test"
MEMBERSHIPS = (None, "join", "invite", "leave", "ban", "knock")


def room(membership=None, rule=None, version="10", levels=None):
    state = MadeState(version, levels=levels)
    if membership:
        state.member(X, membership)
    return state.join_rule(rule) if rule else state


def allowed_from(version, rule, to, sender=X, levels=None):
    return {was for was in MEMBERSHIPS if room(was, rule, version, levels).change(sender, X, to) is None}


def test_public_rooms_let_in_everyone_but_the_banned():
    assert allowed_from("10", "public", "join") == {None, "join", "invite", "leave", "knock"}


@pytest.mark.parametrize(
    "version, rule",
    [("1", None), ("1", "invite"), ("7", "knock"), ("8", "restricted"), ("10", "knock_restricted")],
)
def test_closed_rooms_let_in_the_invited(version, rule):
    assert allowed_from(version, rule, "join") == {"join", "invite"}


@pytest.mark.parametrize(
    "version, rule", [("6", "knock"), ("7", "restricted"), ("9", "knock_restricted"), ("10", "private")]
)
def test_rules_that_a_version_does_not_know_let_nobody_in(version, rule):
    assert allowed_from(version, rule, "join") == set()


def test_nobody_joins_for_somebody_else():
    assert "the user who joins" in room("invite").change(C, X, "join")


def test_creator_joins_first_whatever_the_rule():
    state = MadeState()
    del state["m.room.member", C]
    join = {"type": "m.room.member", "state_key": C, "sender": C, "content": {"membership": "join"}}
    assert state.refusal({**join, "prev_events": ["$create"]}) is None
    assert "not invited" in state.refusal({**join, "prev_events": ["$create", "$other"]})


@pytest.mark.parametrize(
    "voucher, membership, invite, allowed",
    [
        (Y, "join", 0, True),
        (Y, "leave", 0, False),
        (Y, "join", 1, False),
        (None, "join", 0, False),
        (7, "join", 0, False),
    ],
)
def test_restricted_join_needs_a_member_who_may_invite(voucher, membership, invite, allowed):
    state = room(None, "restricted", levels={"invite": invite}).member(Y, membership)
    content = {"join_authorised_via_users_server": voucher} if voucher else {}
    assert (state.change(X, X, "join", **content) is None) == allowed


@pytest.mark.parametrize(
    "version, rule, needing",
    [
        ("10", "restricted", {None, "leave", "ban", "knock"}),
        ("10", "knock_restricted", {None, "leave", "ban", "knock"}),
        ("10", "public", set()),
        ("10", None, set()),
        ("7", "restricted", set()),
        ("9", "knock_restricted", set()),
    ],
)
def test_who_needs_somebody_to_authorise_the_join(version, rule, needing):
    rules = room_version(version)
    assert {was for was in MEMBERSHIPS if needs_voucher(room(was, rule, version), X, rules)} == needing


def test_leaving_is_for_those_who_are_in():
    assert allowed_from("10", None, "leave") == {"join", "invite", "knock"}
    assert allowed_from("6", None, "leave") == {"join", "invite"}


def test_inviting_is_for_members_and_about_those_who_are_out():
    assert allowed_from("10", None, "invite", sender=C) == {None, "invite", "leave", "knock"}
    assert "not joined" in room().change(Y, X, "invite")
    assert "takes 101" in room(levels={"invite": 101, "users": {C: 100}}).change(C, X, "invite")


@pytest.mark.parametrize("target, allowed", [(49, True), (50, False)])
def test_kick_and_ban_take_the_level_and_to_outrank(target, allowed):
    levels = {"users": {C: 50, X: target}}
    for to in ("leave", "ban"):
        assert (room("join", levels=levels).change(C, X, to) is None) == allowed
    assert "to kick takes 51" in room("join", levels={**levels, "kick": 51}).change(C, X, "leave")
    assert "to ban takes 51" in room("join", levels={**levels, "ban": 51}).change(C, X, "ban")


def test_unbanning_takes_the_level_of_banning_too():
    levels = {"users": {C: 50}, "ban": 60}
    assert "to ban takes 60" in room("ban", levels=levels).change(C, X, "leave")
    assert room("ban", levels={"users": {C: 60}, "ban": 60}).change(C, X, "leave") is None


def test_nobody_outranks_the_creators_of_version_12():
    state = MadeState("12", levels={"users": {X: 2**53 - 1}}).member(X, "join")
    assert "not above" in state.change(X, C, "ban")
    assert state.change(C, X, "ban") is None


def test_knocking():
    assert allowed_from("7", "knock", "knock") == {None, "leave", "knock"}
    assert allowed_from("10", "knock_restricted", "knock") == {None, "leave", "knock"}
    assert allowed_from("9", "knock_restricted", "knock") == allowed_from("10", "invite", "knock") == set()
    assert "no membership" in room(rule="knock", version="6").change(X, X, "knock")
    assert "the user who knocks" in room(rule="knock").change(C, X, "knock")


@pytest.mark.parametrize("membership", ["", "JOIN", None, 5])
def test_unknown_membership(membership):
    assert "no membership" in room().change(X, X, membership)


# --- third party invites ------------------------------------------------------------------------------------------

SIGNED = {"mxid": X, "token": "t", "signatures": {}}


def third_party(state=None, signed=SIGNED, sender=C, good=True, keys=None):
    if state is None:
        state = room()
        state.put("m.room.third_party_invite", "t", keys or {"public_key": "k"})
    seen = []

    def signed_by(value, public_keys):
        seen.extend(public_keys)
        return good and value == signed

    return state.change(sender, X, "invite", signed_by, third_party_invite={"signed": signed}), seen


def test_third_party_invite_needs_no_level():
    levels = {"invite": 101, "users": {C: 0}}
    state = room(levels=levels).put("m.room.third_party_invite", "t", {"public_key": "k"})
    assert third_party(state)[0] is None


def test_all_keys_of_a_third_party_invite_count():
    content = {"public_key": "a", "public_keys": [{"public_key": "b"}, "x", {"public_key": 1}]}
    assert third_party(keys=content) == (None, ["a", "b"])


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"good": False}, "signature"),
        ({"signed": "x"}, "not an object"),
        ({"signed": {"mxid": X}}, "lacks"),
        ({"signed": {**SIGNED, "mxid": Y}}, "about"),
        ({"signed": {**SIGNED, "token": "other"}}, "no third party invite"),
        ({"sender": Y}, "was sent by"),
        ({"state": room("ban")}, "banned"),
    ],
)
def test_third_party_invite_is_refused(change, reason):
    assert reason in third_party(**change)[0]


def test_without_means_to_verify_signatures_third_party_invites_are_refused():
    state = room().put("m.room.third_party_invite", "t", {"public_key": "k"})
    assert "signature" in state.change(C, X, "invite", third_party_invite={"signed": SIGNED})
