"""What the decoder lets through is what a strict reading of the text says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.decoding import decode_event
from events.errors import EventRefused, Reason

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


@given(st.binary(max_size=40))
def test_any_bytes_give_an_object_or_a_reason(text):
    try:
        assert isinstance(decode_event(text), dict)
    except EventRefused as refused:
        assert refused.reason in Reason
