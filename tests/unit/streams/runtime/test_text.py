"""Text of others on a terminal."""

from __future__ import annotations

from streams.runtime.text import printable


def test_ordinary_names_are_left_alone():
    assert printable("Zoë 日本 <b>") == "Zoë 日本 <b>"


def test_what_a_terminal_would_act_on_is_written_as_an_escape():
    assert printable("\x1b[2J\nowned\x9b") == "\\x1b[2J\\nowned\\x9b"
