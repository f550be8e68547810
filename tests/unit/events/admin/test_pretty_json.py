"""Stored bytes shown to people, whatever they are."""

from __future__ import annotations

import json

import pytest

from events.admin.pretty_json import pretty_json


def test_json_is_indented_and_letters_stay_letters():
    assert pretty_json(b'{"body":"\xc3\xa4"}') == '{\n  "body": "ä"\n}'


def test_what_the_database_gives_is_taken_as_it_is():
    assert pretty_json(memoryview(b"[1]")) == "[\n  1\n]"


@pytest.mark.parametrize(
    "stored",
    [
        b"", b"{", b"\xff\xfe\x00", b"\x00", b'"\\u0000"', b'"\\ud800"', b"[" * 100_000, b'{"n":' + b"9" * 5000 + b"}", b"NaN",
        '{"a":"\u2028<script>"}'.encode(),
    ],
)  # fmt: skip
def test_odd_bytes_are_shown_and_never_crash(stored):
    shown = pretty_json(stored)
    assert "\x00" not in shown
    shown.encode()


def test_what_turns_text_round_is_an_escape_of_json():
    stored = '{"a":"\u202e\u2066\u200f\x9b"}'
    shown = pretty_json(stored.encode())
    assert r'"\u202e\u2066\u200f\u009b"' in shown and json.loads(shown) == json.loads(stored)
    assert pretty_json("\u202e{".encode()) == r"\u202e{"
