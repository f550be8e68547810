"""Names of instances: what can travel, and what a pattern means."""

from __future__ import annotations

import pytest

from streams.core.names import LONGEST_NAME, check_name, is_pattern, matches_pattern, numbered_name
from streams.errors import BadInstanceName
from streams.writing import process


@pytest.mark.parametrize("name", ["master", "web-{n}", "event_persister.1", "ñandú", "x" * LONGEST_NAME])
def test_good_names(name):
    check_name(name)


@pytest.mark.parametrize(
    "name", ["", "two words", "tab\tbed", "line\n", "nul\0", "nb\u00a0sp", "x" * (LONGEST_NAME + 1)]
)
def test_names_that_cannot_travel(name):
    with pytest.raises(ValueError, match="cannot be an instance name"):
        check_name(name)


@pytest.mark.parametrize("name", [None, 5, b"bytes", ["a"]])
def test_names_are_texts(name):
    with pytest.raises(BadInstanceName, match="is a text"):
        check_name(name)


@pytest.mark.parametrize("name", ["a b", "", None])
def test_a_process_refuses_such_a_name_when_it_is_given(name):
    before = process._instance
    with pytest.raises(BadInstanceName):
        process.use_instance(name)
    assert process._instance == before


def test_patterns_have_a_place_for_a_number():
    assert is_pattern("web-{n}")
    assert not is_pattern("web-1")
    assert numbered_name("web-{n}", 7) == "web-7"


@pytest.mark.parametrize(
    ("name", "pattern", "matches"),
    [
        ("web-12", "web-{n}", True),
        ("web-", "web-{n}", False),
        ("web-x", "web-{n}", False),
        ("web-1-2", "web-{n}", False),
        ("axweb-1", "web-{n}", False),
        ("master", "master", True),
        ("masterX", "master", False),
        ("aXb", "a.b", False),
        ("w1", "w1\n", False),
    ],
)
def test_matching(name, pattern, matches):
    assert matches_pattern(name, pattern) is matches
