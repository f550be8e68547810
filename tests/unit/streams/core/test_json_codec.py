"""JSON on the wire: compact, ASCII, exact."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.core.json_codec import (
    MOST_DEPTH,
    decode_json,
    decode_stored_json,
    decode_stored_object,
    encode_json,
    is_deeper,
)
from streams.errors import BadJson


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (["a", 1, None, True, {"k": [2.5]}], b'["a",1,null,true,{"k":[2.5]}]'),
        ("\u2615 caf\u00e9", b'"\\u2615 caf\\u00e9"'),
        ("\U0001f600", b'"\\ud83d\\ude00"'),
        ("\x00\x7f\n", b'"\\u0000\\u007f\\n"'),
        ("\ud800", b'"\\ud800"'),
        (2**80, b"1208925819614629174706176"),
        ([None, 1.5], b"[null,1.5]"),
        (("tuple", ()), b'["tuple",[]]'),
    ],
)
def test_value_is_written(value, text):
    assert encode_json(value) == text


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": [None, -math.inf]}, object(), {1, 2}])
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(BadJson):
        encode_json(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1208925819614629174706176", 2**80), ('"\\ud800"', "\ud800"), (" [1 ] ", [1]), ('"\u2615"', "\u2615")],
)
def test_text_is_read(text, value):
    assert decode_json(text) == value


@pytest.mark.parametrize("text", ["", "NaN", "-Infinity", "[1,]", "{'a':1}", "1e999", "[" * 5000, '"a', "nul"])
def test_other_text_is_refused(text):
    with pytest.raises(BadJson):
        decode_json(text)


def test_del_is_escaped_as_the_standard_encoder_does():
    assert encode_json(["a\x7fb"]) == b'["a\\u007fb"]'


def nested(depth: int, kind: type) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


def called(depth: int, work):
    """The result of the work, called from deep within a program."""
    return work() if not depth else called(depth - 1, work)


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("calls", [0, 400, 700])
def test_both_directions_have_one_limit_wherever_the_caller_is(kind, calls):
    opening, closing = ("[", "]") if kind is list else ('{"a":', "}")
    for depth in (1, 253, 254, 255, MOST_DEPTH - 1, MOST_DEPTH):
        text = opening * depth + "1" + closing * depth
        value = called(calls, lambda: decode_json(text))  # noqa: B023 - called in this round
        assert called(calls, lambda: encode_json(value)).decode() == text  # noqa: B023 - called in this round
    for depth in (MOST_DEPTH + 1, 950, 985, 994, 995, 1001, 100_000):
        text = opening * depth + "1" + closing * depth
        with pytest.raises(BadJson, match=r"deeper than 900 levels"):
            called(calls, lambda: decode_json(text))  # noqa: B023 - called in this round
        if depth < 2000:
            with pytest.raises(BadJson, match=r"deeper than 900 levels"):
                called(calls, lambda: encode_json(nested(depth, kind)))  # noqa: B023 - called in this round


def test_a_value_that_holds_itself_is_refused():
    value: dict[str, object] = {}
    value["a"] = value["b"] = [value, value]
    assert is_deeper(value, 900)
    with pytest.raises(BadJson):
        encode_json(value)


@pytest.mark.parametrize("text", ["", "once", "[1", "NaN", "1e999", "9" * 5_000, "[" * 5_000 + "]" * 5_000])
def test_what_is_not_json_is_null_in_a_stored_row(text):
    assert decode_stored_json(text) is None


def test_a_stored_row_keeps_numbers_and_text():
    assert decode_stored_json('{"n":%s,"t":"\\u0000\\ud800"}' % 10**400) == {"n": 10**400, "t": "\0\ud800"}


@given(st.dictionaries(st.text(), st.recursive(st.integers() | st.text() | st.booleans(), st.lists, max_leaves=5)))
def test_a_member_that_cannot_be_decoded_is_null_beside_all_others(members):
    for bad in ("9" * 5_000, '{"]}": [' + "9" * 5_000 + "]}", "[" * 2_000 + "]" * 2_000):
        text = json.dumps(members | {"bad": "here"}, separators=(", ", ": ")).replace('"here"', bad)
        assert decode_stored_object(text) == members | {"bad": None}


def test_an_object_is_decoded_as_it_is():
    assert decode_stored_object('{"a": {"b": [1, "}"]}, "c": 1e5}') == {"a": {"b": [1, "}"]}, "c": 1e5}
    assert decode_stored_object("{}") == {}
