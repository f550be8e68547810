"""Names of instances: what can travel, and what a pattern means."""

from __future__ import annotations

import pytest

from streams.conf import on_this_host
from streams.core.names import LONGEST_NAME, check_name, is_name_of_writer, matches_pattern, name_without_number
from streams.errors import BadInstanceName
from streams.writing import name as writing_name


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
    before = writing_name.writer_name()
    with pytest.raises(BadInstanceName):
        writing_name.use_instance(name)
    assert writing_name.writer_name() == before


@pytest.mark.parametrize(
    ("name", "pattern", "matches"),
    [
        ("web-12", "web-{n}", True),
        ("web", "web-{n}", False),
        ("web-", "web-{n}", False),
        ("web-x", "web-{n}", False),
        ("web-1-2", "web-{n}", False),
        ("axweb-1", "web-{n}", False),
        ("master", "master", True),
        ("masterX", "master", False),
        ("aXb", "a.b", False),
        ("w1", "w1\n", False),
        ("box-7-3", "{host}-{n}", True),
        ("3", "{host}-{n}", False),
        ("a.b-3", "{host}-{n}", False),
    ],
)
def test_matching(name, pattern, matches):
    assert matches_pattern(name, pattern) is matches
    assert is_name_of_writer(name, pattern) is (matches or (name, pattern) in WITHOUT_NUMBER)


#: A machine may have the name 3.
WITHOUT_NUMBER = [("web", "web-{n}"), ("3", "{host}-{n}")]


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("box", "box-{n}"),
        ("web-7.example.org", "web-7-{n}"),
        ("my box\n", "my-box--{n}"),
        ("", "host-{n}"),
        ("x" * 200, "x" * 60 + "-{n}"),
    ],
)
def test_the_machine_gives_a_name_that_can_travel(host, name, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert on_this_host("{host}-{n}") == name
    check_name(name)
    assert is_name_of_writer(name_without_number(name), "{host}-{n}")
    assert on_this_host("master") == "master"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("master", "master"), ("vm-{n}", "vm"), ("{n}.vm", "vm"), ("a-{n}-b", "a--b"), ("{n}", "server")],
)
def test_a_process_without_a_number_is_called_without_it(pattern, name):
    assert name_without_number(pattern) == name
