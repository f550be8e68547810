"""Canonical JSON: the byte form, and what has none."""

import math

import pytest

from events.errors import NotCanonical, Reason
from events.format.canonical_json import LARGEST_INTEGER, encode, examine


def test_keys_are_sorted_by_code_point_not_by_utf16():
    assert encode({"\U00010000": 1, "\uffff": 2, "b": 3, "a": 4}) == '{"a":4,"b":3,"\uffff":2,"\U00010000":1}'.encode()


def test_escapes_are_the_shortest():
    assert encode('\b\t\n\f\r"\\\x00\x1f\x7fé/') == '"\\b\\t\\n\\f\\r\\"\\\\\\u0000\\u001f\x7fé/"'.encode()


def test_largest_integers_pass():
    assert encode([LARGEST_INTEGER, -LARGEST_INTEGER]) == b"[9007199254740991,-9007199254740991]"


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**63, 10**400, 1.0, -0.0, 1e300, math.nan, math.inf])
def test_strict_rules_refuse_other_numbers(number):
    with pytest.raises(NotCanonical) as caught:
        encode({"deep": [{"x": number}]})
    assert caught.value.reason == Reason.BAD_NUMBER


@pytest.mark.parametrize("number, text", [(2**53, b"9007199254740992"), (2**80, str(2**80).encode()), (1.5, b"1.5")])
def test_older_rules_let_other_numbers_through(number, text):
    assert encode(number, strict=False) == text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_rules_let_infinities_through(number):
    with pytest.raises(NotCanonical):
        encode(number, strict=False)


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_have_as_many_digits_as_can_be_read_again(sign):
    assert len(encode(sign * (10**4_300 - 1), strict=False)) >= 4_300
    with pytest.raises(NotCanonical, match="digits") as caught:
        encode(sign * 10**4_300, strict=False)
    assert caught.value.reason == Reason.BAD_NUMBER


def test_lone_surrogate_is_refused():
    with pytest.raises(NotCanonical) as caught:
        encode({"body": "\ud800"})
    assert caught.value.reason == Reason.BAD_UNICODE


@pytest.mark.parametrize("depth", [249, 251, 800])
def test_deep_values_are_written_by_either_encoder(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    assert encode(value) == b"[" * depth + b"1" + b"]" * depth


def test_endless_depth_is_refused():
    value = []
    for _ in range(20_000):
        value = [value]
    with pytest.raises(NotCanonical) as caught:
        encode(value)
    assert caught.value.reason == Reason.TOO_DEEP


@pytest.mark.parametrize("value", [{1: 2}, {"a": b"bytes"}, [(1, 2)], {"a": {None: 1}}])
def test_values_that_are_not_json_are_refused(value):
    with pytest.raises(NotCanonical) as caught:
        encode(value)
    assert caught.value.reason == Reason.WRONG_TYPE


def test_booleans_are_not_taken_for_numbers():
    assert encode([True, False, None]) == b"[true,false,null]"


def test_plain_means_that_the_fast_encoder_is_exact():
    assert examine({"a": [1, "x", None, True]}) is True
    assert examine({"a": 1.5}, strict=False) is False
