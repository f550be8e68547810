"""Canonical JSON holds against the public implementation and against itself."""

import json

import canonicaljson
from hypothesis import given
from hypothesis import strategies as st

from events.format.canonical_json import LARGEST_INTEGER, encode

TEXT = st.text(st.characters(codec="utf-8"))
STRICT = st.recursive(
    st.none() | st.booleans() | st.integers(-LARGEST_INTEGER, LARGEST_INTEGER) | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)
LENIENT = st.recursive(
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)


@given(STRICT)
def test_equals_the_public_implementation(value):
    assert encode(value) == canonicaljson.encode_canonical_json(value)


@given(LENIENT)
def test_equals_it_under_the_older_rules_too(value):
    assert encode(value, strict=False) == canonicaljson.encode_canonical_json(value)


@given(STRICT)
def test_reads_back_as_the_same_value(value):
    assert json.loads(encode(value)) == value


@given(STRICT)
def test_canonical_form_is_its_own_canonical_form(value):
    once = encode(value)
    assert encode(json.loads(once)) == once
