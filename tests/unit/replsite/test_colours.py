"""Colours of the pages exist in Django's own admin, too, which has none of Unfold's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import replsite

_STYLES = Path(replsite.__file__).parent / "static/dashboard"
_COLOUR = r"--color-[a-z]+-[0-9]+"


@pytest.mark.parametrize("name", ["live.css", "history.css", "forms.css", "api.css"])
def test_each_colour_of_unfold_has_one_of_djangos_instead(name: str) -> None:
    theme = set(re.findall(rf"({_COLOUR}):", (_STYLES / "theme.css").read_text()))
    # What is for the class .dark is Unfold's alone.
    rules = re.sub(r"^\.dark [^{]*\{[^}]*\}", "", (_STYLES / name).read_text(), flags=re.MULTILINE)
    assert set(re.findall(rf"var\(({_COLOUR})\)", rules)) - theme == set()


def test_pages_have_the_theme() -> None:
    """``history.css`` is used beside ``live.css`` only."""
    for name in ("live.css", "forms.css", "api.css"):
        assert (_STYLES / name).read_text().startswith('@import url("theme.css");'), name
