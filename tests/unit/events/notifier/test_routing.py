"""Whom the rows of each stream concern, by rows as they travel."""

from __future__ import annotations

import pytest

from events.notifier import routing
from events.notifier.routing import CONCERNS_NOBODY, Kind, concerns_of, followed, room_in, say_concerns
from streams.catalog.declarations import declarations

ROOM, ALICE = "!r:x", "@alice:x"
EVENT = ["$1", ROOM, "m.room.message", None, None, None, None, False]
MEMBER = ["$1", ROOM, "m.room.member", ALICE, None, None, "join", False]


@pytest.mark.parametrize(
    ("stream", "row", "concerned"),
    [
        ("events", ["ev", EVENT], {(Kind.ROOM, ROOM)}),
        ("events", ["ev", MEMBER], {(Kind.ROOM, ROOM), (Kind.USER, ALICE)}),
        ("events", ["ev", ["$1", ROOM, "m.room.topic", "", None, None, None, False]], {(Kind.ROOM, ROOM)}),
        ("events", ["state", [ROOM, "m.room.member", ALICE, "$1"]], {(Kind.ROOM, ROOM), (Kind.USER, ALICE)}),
        ("events", ["state", [ROOM, "m.room.member", ALICE, None]], {(Kind.ROOM, ROOM), (Kind.USER, ALICE)}),
        ("events", ["state", [ROOM, "m.room.name", "", "$1"]], {(Kind.ROOM, ROOM)}),
        ("caches", ["resync_user", [ALICE, "@bob:x"], 1], {(Kind.USER, ALICE), (Kind.USER, "@bob:x")}),
        ("caches", ["resync_user", None, 1], set()),
        ("caches", ["cs_cache_fake", [ROOM, ALICE], 1], {(Kind.USER, ALICE)}),
        ("caches", ["cs_cache_fake", None, 1], set()),
        ("caches", ["get_user", [ALICE], 1], set()),
        ("presence", [ALICE, "online", 0, 0, 0, None, True], {(Kind.CONTACT, ALICE)}),
        ("typing", [ROOM, [ALICE]], {(Kind.ROOM, ROOM)}),
        ("receipts", [ROOM, "m.read", ALICE, "$1", {}], {(Kind.ROOM, ROOM)}),
        ("push_rules", [ALICE], {(Kind.USER, ALICE)}),
        ("pushers", [ALICE, "app", "key", False], {(Kind.USER, ALICE)}),
        ("device_lists", [ALICE], {(Kind.CONTACT, ALICE)}),
        ("device_lists", ["server.example"], set()),
        ("to_device", ["server.example"], set()),
        ("to_device", [ALICE], {(Kind.USER, ALICE)}),
        ("tag_account_data", [ALICE, ROOM, "{}"], {(Kind.USER, ALICE)}),
        ("account_data", [ALICE, None, "m.direct"], {(Kind.USER, ALICE)}),
        ("groups", ["+g:x", ALICE, "membership", {}], {(Kind.USER, ALICE)}),
        ("user_signature", [ALICE], {(Kind.USER, ALICE)}),
    ],
)
def test_whom_a_row_concerns(stream, row, concerned):
    rule = concerns_of(stream)
    assert rule is not None
    assert set(rule(row)) == concerned


def test_every_plain_stream_concerns_somebody_or_has_a_reason():
    names = {declaration.name for declaration in declarations()} | {"events", "backfill"}
    assert names == set(followed()) | set(CONCERNS_NOBODY)
    assert all(concerns_of(name) is None for name in CONCERNS_NOBODY)


def test_a_stream_says_it_once(monkeypatch):
    monkeypatch.setattr(routing, "_rules", dict(routing._rules))
    say_concerns("test_polls", room_in(1))
    assert set(concerns_of("test_polls")(["x", ROOM])) == {(Kind.ROOM, ROOM)}
    with pytest.raises(ValueError, match="say it once"):
        say_concerns("test_polls", room_in(0))
