"""JSON on the wire: compact, ASCII, exact."""

import math

import pytest

from streams.core.json_codec import decode_json, encode_json
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
