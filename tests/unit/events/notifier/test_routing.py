"""Whom the rows of each stream concern, by rows as they travel."""

from __future__ import annotations

import pytest

from events.notifier import routing
from events.notifier.routing import NOT_ROUTED, Target, find_rule, room_in, route_stream, routed_streams
from streams.catalog.declarations import declarations

ROOM, ALICE = "!r:x", "@alice:x"
EVENT = ["$1", ROOM, "m.room.message", None, None, None, None, False]
MEMBER = ["$1", ROOM, "m.room.member", ALICE, None, None, "join", False]


@pytest.mark.parametrize(
    ("stream", "row", "concerned"),
    [
        ("events", ["ev", EVENT], {(Target.ROOM, ROOM)}),
        ("events", ["ev", MEMBER], {(Target.ROOM, ROOM), (Target.USER, ALICE)}),
        ("events", ["ev", ["$1", ROOM, "m.room.topic", "", None, None, None, False]], {(Target.ROOM, ROOM)}),
        ("events", ["state", [ROOM, "m.room.member", ALICE, "$1"]], {(Target.ROOM, ROOM), (Target.USER, ALICE)}),
        ("events", ["state", [ROOM, "m.room.member", ALICE, None]], {(Target.ROOM, ROOM), (Target.USER, ALICE)}),
        ("events", ["state", [ROOM, "m.room.name", "", "$1"]], {(Target.ROOM, ROOM)}),
        ("caches", ["resync_user", [ALICE, "@bob:x"], 1], {(Target.USER, ALICE), (Target.USER, "@bob:x")}),
        ("caches", ["resync_user", None, 1], set()),
        ("caches", ["cs_cache_fake", [ROOM, ALICE], 1], {(Target.USER, ALICE)}),
        ("caches", ["cs_cache_fake", None, 1], set()),
        ("caches", ["get_user", [ALICE], 1], set()),
        ("presence", [ALICE, "online", 0, 0, 0, None, True], {(Target.CONTACT, ALICE)}),
        ("typing", [ROOM, [ALICE]], {(Target.ROOM, ROOM)}),
        ("receipts", [ROOM, "m.read", ALICE, "$1", {}], {(Target.ROOM, ROOM)}),
        ("push_rules", [ALICE], {(Target.USER, ALICE)}),
        ("pushers", [ALICE, "app", "key", False], {(Target.USER, ALICE)}),
        ("device_lists", [ALICE], {(Target.CONTACT, ALICE)}),
        ("device_lists", ["server.example"], set()),
        ("to_device", ["server.example"], set()),
        ("to_device", [ALICE], {(Target.USER, ALICE)}),
        ("tag_account_data", [ALICE, ROOM, "{}"], {(Target.USER, ALICE)}),
        ("account_data", [ALICE, None, "m.direct"], {(Target.USER, ALICE)}),
        ("groups", ["+g:x", ALICE, "membership", {}], {(Target.USER, ALICE)}),
        ("user_signature", [ALICE], {(Target.USER, ALICE)}),
    ],
)
def test_whom_a_row_concerns(stream, row, concerned):
    rule = find_rule(stream)
    assert rule is not None
    assert set(rule(row)) == concerned


def test_every_plain_stream_concerns_somebody_or_has_a_reason():
    names = {declaration.name for declaration in declarations()} | {"events", "backfill"}
    assert names == set(routed_streams()) | set(NOT_ROUTED)
    assert all(find_rule(name) is None for name in NOT_ROUTED)


def test_a_stream_says_it_once(monkeypatch):
    monkeypatch.setattr(routing, "_rules", dict(routing._rules))
    route_stream("test_polls", room_in(1))
    assert set(find_rule("test_polls")(["x", ROOM])) == {(Target.ROOM, ROOM)}
    with pytest.raises(ValueError, match="register it once"):
        route_stream("test_polls", room_in(0))
