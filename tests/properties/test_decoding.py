"""What the decoder lets through is what a strict reading of the text says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.errors import EventRefused, Reason
from events.format.canonical_json import examine
from events.format.strict_json import decode_event, decode_plain

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)
STYLES = st.sampled_from([{"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}, {"sort_keys": True}])


@given(OBJECTS, STYLES)
def test_valid_objects_come_through_unchanged_however_they_are_written(value, style):
    assert decode_event(json.dumps(value, **style).encode()) == value


@given(OBJECTS, OBJECTS, TEXT, VALUES, VALUES)
def test_duplicate_key_is_found_at_any_depth(outside, inside, key, one, other):
    members = [(key, one), *inside.items(), (key, other)]
    broken = "{" + ",".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in members) + "}"
    whole = json.dumps({**outside, "x": [0]}, separators=(",", ":")).replace('"x":[0]', f'"x":[{broken}]')
    with pytest.raises(EventRefused) as caught:
        decode_event(whole.encode())
    assert caught.value.reason == Reason.DUPLICATE_KEY


@given(OBJECTS, STYLES)
def test_a_plain_text_is_what_the_slow_way_calls_plain(value, style):
    text = json.dumps(value, **style).encode()
    plain = decode_plain(text)
    if plain is not None:
        assert plain == decode_event(text)
        assert examine(plain, strict=True)


@given(st.dictionaries(TEXT, st.integers(-(2**53) + 1, 2**53 - 1) | TEXT | st.none(), max_size=4))
def test_most_events_are_plain(value):
    assert decode_plain(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1.0}',
        '{"a":9007199254740992}',
        '{"a":-9007199254740992}',
        '{"a":123456789012345678901234}',
        '{"a":1,"a":2}',
        '{"a": 1}',
        '{"a":"\\ud800"}',
        "[1]",
        "{",
        '{"a":' + "[" * 400 + "]" * 400 + "}",
    ],
)
def test_what_takes_a_closer_look_is_not_called_plain(text):
    assert decode_plain(text.encode()) is None


@given(st.binary(max_size=40))
def test_any_bytes_give_an_object_or_a_reason(text):
    try:
        assert isinstance(decode_event(text), dict)
    except EventRefused as refused:
        assert refused.reason in Reason
