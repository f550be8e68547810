"""Environment variables are read as values of a type, and what cannot be read is named."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured

from replsite import environment

NAME = "REPLSITE_OF_A_TEST"


@pytest.mark.parametrize(
    ("read", "given", "found"),
    [
        (environment.text, " a", " a"),
        (environment.text, "", ""),
        (environment.list_of, "", []),
        (environment.list_of, "a.b,c.d", ["a.b", "c.d"]),
        (environment.switch, "on", True),
        (environment.switch, "True", True),
        (environment.switch, "1", True),
        (environment.switch, "off", False),
        (environment.switch, "no", False),
        (environment.whole_number, "-3", -3),
        (environment.number, "0.5", 0.5),
        (environment.json_of, '{"a": ["b"]}', {"a": ["b"]}),
    ],
)
def test_a_value_is_read(monkeypatch, read, given, found):
    monkeypatch.setenv(NAME, given)
    assert read(NAME, None) == found


@pytest.mark.parametrize(
    ("read", "given", "wanted"),
    [
        (environment.switch, "", "on or off"),
        (environment.switch, "maybe", "on or off"),
        (environment.whole_number, "1.5", "a whole number"),
        (environment.whole_number, "", "a whole number"),
        (environment.number, "soon", "a number"),
        (environment.number, "nan", "a number"),
        (environment.number, "inf", "a number"),
        (environment.json_of, "[1", "JSON"),
    ],
)
def test_what_cannot_be_read_is_named(monkeypatch, read, given, wanted):
    monkeypatch.setenv(NAME, given)
    with pytest.raises(ImproperlyConfigured, match=f"^{NAME} is {given!r}: write {wanted}".replace("[", r"\[")):
        read(NAME, None)


@pytest.mark.parametrize("read", [environment.text, environment.list_of, environment.json_of, environment.switch])
def test_a_variable_that_is_not_set_has_its_default(read):
    default = object()
    assert read(NAME, default) is default
