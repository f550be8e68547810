"""Which state an event is judged by: what the vectors leave open."""

import pytest

from state.rules.auth_selection import auth_keys
from state.rules.room_versions import room_version
from tests.support.rule_cases import ruled

X = "@x:a.test"
ALWAYS = {("m.room.create", ""), ("m.room.power_levels", ""), ("m.room.member", X)}


def keys(version="10", **parts):
    return set(auth_keys(ruled({"sender": X, **parts}), room_version(version)))


def test_create_event_stands_on_nothing():
    assert keys(type="m.room.create", state_key="") == set()


def test_invite_by_third_party_names_the_token():
    content = {"membership": "invite", "third_party_invite": {"signed": {"token": "t"}}}
    found = keys(type="m.room.member", state_key="@y:a", content=content)
    assert found - ALWAYS == {
        ("m.room.member", "@y:a"), ("m.room.join_rules", ""), ("m.room.third_party_invite", "t"),
    }  # fmt: skip


@pytest.mark.parametrize("invite", [None, "x", {}, {"signed": []}, {"signed": {"token": 5}}])
def test_unusable_third_party_invites_name_nothing(invite):
    content = {"membership": "invite", "third_party_invite": invite}
    found = keys(type="m.room.member", state_key=X, content=content)
    assert found - ALWAYS == {("m.room.join_rules", "")}


@pytest.mark.parametrize("version, counts", [("7", False), ("8", True), ("12", True)])
def test_who_vouches_for_a_join_counts_from_version_8_on(version, counts):
    content = {"membership": "join", "join_authorised_via_users_server": "@v:a"}
    found = keys(version, type="m.room.member", state_key=X, content=content)
    assert (("m.room.member", "@v:a") in found) == counts


def test_membership_without_state_key_is_like_a_message():
    assert keys(type="m.room.member", content={"membership": "join"}) == ALWAYS
