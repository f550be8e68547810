"""One line for people out of any content, and power levels as tables."""

from __future__ import annotations

import pytest

from events.format.event_words import MOST_WORDS, event_words, power_level_tables


@pytest.mark.parametrize(
    "event_type, content, words",
    [
        ("m.room.message", {"msgtype": "m.text", "body": "hello\n  there"}, "hello there"),
        ("m.room.message", {"msgtype": "m.image", "body": "cat.png"}, "[m.image] cat.png"),
        ("m.room.message", {"body": 5}, '{"body": 5}'),
        ("m.room.member", {"membership": "join", "displayname": "Ann"}, 'join, as "Ann"'),
        ("m.room.member", {"membership": "ban", "reason": "spam"}, "ban, because: spam"),
        ("m.room.name", {"name": "Lobby"}, "Lobby"),
        ("m.room.topic", {"topic": ["no text"]}, '{"topic": ["no text"]}'),
        ("m.room.join_rules", {"join_rule": "public"}, "public"),
        (
            "m.room.join_rules",
            {"join_rule": "restricted", "allow": [{"room_id": "!a:b"}, "x"]},
            "restricted, for members of !a:b",
        ),
        ("m.room.create", {"room_version": "12", "type": "m.space"}, "version 12, type m.space"),
        ("m.room.create", {"predecessor": {"room_id": "!old:a"}}, "version 1, after !old:a"),
        ("m.room.power_levels", {"users": {"@b:b": 50, "@a:a": 100}}, "@a:a 100, @b:b 50"),
        (
            "m.room.power_levels",
            {"users": {f"@{n}:a": n for n in range(9)}},
            "@8:a 8, @7:a 7, @6:a 6, @5:a 5 and 5 more",
        ),
        ("m.room.server_acl", {"allow": ["*"], "deny": ["a", "b"]}, "1 allowed, 2 denied"),
        ("m.room.tombstone", {"body": "moved", "replacement_room": "!new:a"}, "moved (goes on in !new:a)"),
        ("m.room.pinned_events", {"pinned": ["$a", "$b"]}, "2 pinned"),
        ("m.room.encrypted", {"algorithm": "m.megolm"}, "encrypted with m.megolm"),
        ("m.reaction", {"m.relates_to": {"key": "+1"}}, "+1"),
        ("m.reaction", {"m.relates_to": "no object"}, '{"m.relates_to": "no object"}'),
        ("org.own", {"a": {"b": [1, None]}}, '{"a": {"b": [1, null]}}'),
        ("m.room.message", {}, ""),
        ("m.room.message", None, ""),
        ("m.room.message", ["not", "an object"], '["not", "an object"]'),
    ],
)
def test_content_becomes_one_line(event_type, content, words):
    assert event_words(event_type, content) == words


@pytest.mark.parametrize(
    "event_type", ["m.room.create", "m.room.member", "m.room.power_levels", "m.room.server_acl", "m.x"]
)
@pytest.mark.parametrize("value", [None, 5, "x", [], {}, [None], {"a": None}, True])
def test_any_kind_of_value_gives_some_line(event_type, value):
    keys = ("membership", "displayname", "users", "room_version", "allow", "predecessor", "events", "notifications")
    assert isinstance(event_words(event_type, dict.fromkeys(keys, value)), str)
    assert set(power_level_tables(dict.fromkeys(keys, value))) == {"users", "actions", "events"}


def test_a_long_line_is_cut():
    words = event_words("m.room.message", {"body": "x" * 1_000})
    assert len(words) == MOST_WORDS and words.endswith("…")


def test_power_levels_are_tables_with_the_levels_that_apply():
    tables = power_level_tables(
        {"users": {"@b:b": "7", "@a:a": 100, "@c:c": 100}, "ban": 60, "events": {"m.room.name": 90}}
    )
    assert tables["users"] == [("@a:a", "100"), ("@c:c", "100"), ("@b:b", "7")]
    assert ("ban", "60") in tables["actions"] and ("kick", "50") in tables["actions"]
    assert ("notify the whole room", "50") in tables["actions"]
    assert tables["events"] == [("m.room.name", "90")]
