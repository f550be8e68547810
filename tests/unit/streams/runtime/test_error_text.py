"""Errors as they are stored: without any setting that was declared as a secret."""

from __future__ import annotations

from dataclasses import fields

import pytest

from streams.runtime.error_text import error_text
from streams.stream_settings import StreamSettings

SECRETS = [one.name for one in fields(StreamSettings) if not one.repr]


def test_the_secrets_are_known():
    assert SECRETS == ["redis_password", "replication_secret"]


@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_of_the_site_is_stored(settings, name):
    setattr(settings, f"REPLSITE_{name.upper()}", "tell-nobody")
    assert error_text(ValueError("refused: tell-nobody\n!")) == "ValueError: refused: *** !"


def test_it_is_one_printable_line():
    assert error_text(ValueError("a\n\x1b[2J\u202e\0")) == "ValueError: a \\x1b[2J\\u202e\ufffd"
