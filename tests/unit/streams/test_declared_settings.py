"""A setting is declared once: its texts are read as its default's type, and what cannot be read or used is named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streams.declared_settings import BadSetting, as_django, from_django, from_texts, out_of_bounds, secrets_of, setting


@dataclass(frozen=True, slots=True)
class Some:
    name: str = "a"
    secret: str = setting("", is_secret=True)
    names: Any = ()
    is_on: bool = True
    whole: int = setting(3, above=0)
    seconds: float = setting(1.0, least=0, most=1_000)
    more: Any = setting(factory=dict)
    folder: Path = Path("there")
    port: int | None = setting(None, least=1, read=int, wanted="a port")
    own: str = setting("x", variable="OTHER", site="y")
    django_only: str = setting("z", variable=None)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("name", " a", " a"),
        ("name", "", ""),
        ("names", "", []),
        ("names", "a.b,c.d", ["a.b", "c.d"]),
        ("is_on", "on", True),
        ("is_on", "True", True),
        ("is_on", "1", True),
        ("is_on", "off", False),
        ("is_on", "no", False),
        ("whole", "-3", -3),
        ("seconds", "0.5", 0.5),
        ("more", '{"a": ["b"]}', {"a": ["b"]}),
        ("folder", "/a", Path("/a")),
        ("port", "7", 7),
    ],
)
def test_a_text_is_read_as_the_type_of_the_default(name, text, found):
    assert getattr(from_texts(Some, {f"REPLSITE_{name.upper()}": text}), name) == found


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("is_on", "", "on or off"),
        ("is_on", "maybe", "on or off"),
        ("whole", "1.5", "a whole number"),
        ("whole", "", "a whole number"),
        ("seconds", "soon", "a number"),
        ("seconds", "nan", "a number"),
        ("seconds", "inf", "a number"),
        ("more", "[1", r"JSON \(Expecting"),
        ("port", "x", "a port"),
    ],
)
def test_what_cannot_be_read_is_named(name, text, wanted):
    variable = f"REPLSITE_{name.upper()}"
    with pytest.raises(BadSetting, match=rf"^{variable} is {text!r}: write {wanted}".replace("[1", r"\[1")):
        from_texts(Some, {variable: text})


def test_what_is_not_set_has_the_default_of_the_site_or_of_the_declaration():
    assert from_texts(Some, {}, name="b") == Some(name="b", own="y")
    assert from_texts(Some, {"OTHER": "w", "REPLSITE_DJANGO_ONLY": "w", "REPLSITE_OWN": "w"}) == Some(own="w")


def test_django_has_what_the_environment_gives_and_a_project_may_leave_any_out():
    given = as_django(Some(whole=5))
    assert given["REPLSITE_WHOLE"] == 5 and "REPLSITE_DJANGO_ONLY" not in given
    assert from_django(Some, SimpleNamespace(**given, REPLSITE_UNKNOWN=1)) == Some(whole=5)


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"whole": 0}, "more than 0"),
        ({"whole": "5"}, "more than 0"),
        ({"whole": None}, "more than 0"),
        ({"seconds": -0.5}, "0 or more and at most 1,000"),
        ({"seconds": float("nan")}, "0 or more and at most 1,000"),
        ({"seconds": 1_001}, "0 or more and at most 1,000"),
        ({"port": 0}, "1 or more"),
    ],
)
def test_a_value_out_of_bounds_is_named_with_what_is_allowed_and_its_default(given, allowed):
    [(name, value)] = given.items()
    [(text, hint)] = out_of_bounds(Some(**given))
    assert text == f"REPLSITE_{name.upper()} is {value!r}; it must be {allowed}."
    assert f"default is {getattr(Some(), name)}:" in hint


def test_a_secret_is_not_shown():
    assert "hidden" not in repr(Some(secret="hidden"))
    assert (secrets_of(Some(secret="hidden")), secrets_of(Some())) == (["hidden"], [])
