"""What sessions begin with."""

from __future__ import annotations

import pytest

from streams.db.session_settings import RELIED_ON, with_relied_on


@pytest.mark.parametrize("given", ["", "-c role=x"])
def test_options_set_all_of_it_after_what_was_given(given):
    words = with_relied_on(given).split()
    assert words[: len(given.split())] == given.split()
    settings = dict(word.split("=") for word in words[len(given.split()) :] if word != "-c")
    assert settings == {**RELIED_ON, "TimeZone": "UTC"}
