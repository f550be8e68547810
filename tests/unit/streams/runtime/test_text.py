"""Foreign text on pages, terminals and in logs, and for the database."""

from __future__ import annotations

from streams.runtime.text import one_line, safe_text, storable


def test_ordinary_names_are_left_alone():
    assert safe_text("Zoë 日本 <b>") == "Zoë 日本 <b>"
    assert safe_text(None) == ""


def test_what_a_terminal_would_act_on_is_written_as_an_escape():
    assert safe_text("\x1b[2J\nowned\x9b\u202e") == "\\x1b[2J\\nowned\\x9b\\u202e"
    assert safe_text("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"


def test_long_text_is_cut_unless_it_is_wanted_whole():
    assert safe_text("a" * 300) == "a" * 199 + "…"
    assert safe_text("\x1b" * 5, 8) == "\\x1b\\x1…"
    assert safe_text("a" * 300, None) == "a" * 300


def test_what_no_column_holds_is_replaced():
    assert storable("a\0\ud800b") == "a\ufffd\\ud800b"


def test_an_error_is_one_line():
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(TimeoutError()) == "TimeoutError"
