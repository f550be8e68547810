"""Checks of single fields: what is taken, and what is said of what is not."""

from __future__ import annotations

import pytest

from events.errors import EventRefused, Reason
from events.format.parsing import (
    boolean,
    identifier,
    integer,
    optional_identifier,
    references,
    required,
    shown,
    storable,
)
from state.rules.room_versions import room_version


def refused(check, *arguments):
    with pytest.raises(EventRefused) as caught:
        check(*arguments)
    return caught.value.reason, caught.value.detail


@pytest.mark.parametrize(
    ("value", "kind", "taken"),
    [(1, int, True), (True, int, False), (1.0, int, False), ("1", int, False), ({}, dict, True), (None, dict, False),
     ([], list, True), ((), list, False)],
)  # fmt: skip
def test_a_required_field_is_of_that_very_type(value, kind, taken):
    if taken:
        assert required({"a": value}, "a", kind) == value
    else:
        assert refused(required, {"a": value}, "a", kind)[0] is Reason.WRONG_TYPE


def test_a_field_that_is_not_there_is_named():
    assert refused(required, {}, "depth", int) == (Reason.MISSING_KEY, "depth is missing")


@pytest.mark.parametrize(
    ("value", "reason"),
    [("a\0b", Reason.NUL_CHARACTER), ("\ud800", Reason.BAD_UNICODE), ("x" * 256, Reason.IDENTIFIER_TOO_LONG),
     ("é" * 128, Reason.IDENTIFIER_TOO_LONG), (5, Reason.WRONG_TYPE), (None, Reason.WRONG_TYPE)],
)  # fmt: skip
def test_text_that_a_column_cannot_hold_is_refused(value, reason):
    assert refused(storable, value, "state_key")[0] is reason
    assert "state_key" in refused(storable, value, "state_key")[1]


def test_text_of_just_the_longest_size_is_taken():
    for text in ("x" * 255, "é" * 127 + "x", ""):
        assert storable(text, "type") == text
    assert storable("x" * 10_000, "rejected_reason", limit_bytes=None)


@pytest.mark.parametrize("value", ["u:a", "", "@" + "x" * 255, "@a\0", None, ["@a"]])
def test_an_identifier_begins_with_its_sigil_and_is_storable(value):
    assert identifier({"sender": "@u:a"}, "sender", "@") == "@u:a"
    assert "sender" in refused(identifier, {"sender": value}, "sender", "@")[1]


@pytest.mark.parametrize("value", [None, 5, "a\0b", "x" * 256, "é" * 128, {"a": 1}])
def test_what_content_names_may_be_anything(value):
    assert optional_identifier(value) is None
    assert optional_identifier("$e") == "$e"


@pytest.mark.parametrize(
    ("value", "taken"), [(0, True), (2**63 - 1, True), (-1, False), (2**63, False), (10**300, False)]
)
def test_an_integer_lies_between_its_bounds(value, taken):
    if taken:
        assert integer({"depth": value}, "depth", 0) == value
    else:
        reason, detail = refused(integer, {"depth": value}, "depth", 0)
        assert reason is Reason.OUT_OF_RANGE and len(detail) < 200


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_integer_is_none(value):
    assert refused(integer, {"depth": value}, "depth", 0)[0] is Reason.WRONG_TYPE


def test_a_flag_is_true_false_or_not_said():
    assert [boolean(value, "outlier") for value in (True, False, None)] == [True, False, False]
    for value in (0, 1, "true", []):
        assert refused(boolean, value, "outlier")[0] is Reason.WRONG_TYPE


@pytest.mark.parametrize(("version", "form"), [("2", lambda one: [one, {"sha256": "x"}]), ("10", lambda one: one)])
def test_references_are_each_taken_once_in_their_order(version, form):
    event = {"prev_events": [form(one) for one in ("$b", "$a", "$b")]}
    assert references(event, "prev_events", room_version(version), "$own") == ("$b", "$a")


@pytest.mark.parametrize(
    ("version", "entry", "reason"),
    [("10", "$own", Reason.BAD_REFERENCE), ("10", "event", Reason.BAD_REFERENCE), ("10", ["$a", {}], Reason.WRONG_TYPE),
     ("10", "$" + "x" * 255, Reason.IDENTIFIER_TOO_LONG), ("10", "$\0", Reason.NUL_CHARACTER),
     ("2", "$a", Reason.BAD_REFERENCE), ("2", ["$a"], Reason.BAD_REFERENCE), ("2", ["$own", {}], Reason.BAD_REFERENCE),
     ("2", [5, {}], Reason.WRONG_TYPE)],
)  # fmt: skip
def test_what_is_no_reference_is_refused(version, entry, reason):
    assert refused(references, {"auth_events": [entry]}, "auth_events", room_version(version), "$own")[0] is reason


def test_a_value_is_shown_in_a_few_words_however_deep_or_long_it_is():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert (shown(deep), shown({"a": deep}), shown(None), shown(5)) == ("an array", "an object", "None", "5")
    assert len(shown("x" * 10_000)) == 101
    while deep:  # else Python takes it apart by recursion
        deep = deep.pop()
