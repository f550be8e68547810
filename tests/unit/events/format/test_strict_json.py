"""Stored JSON is read or found damaged, and never raises."""

import pytest

from events.format.strict_json import decode_event, decode_stored

DAMAGED = [
    b"",
    b"once upon a time",
    b"[]",
    b"null",
    b'{"content":{}',
    b"{}",
    b'{"content":5}',
    b'{"content":{"n":NaN}}',
    b'{"content":{"n":' + b"9" * 5_000 + b"}}",
    b'{"content":{"n":1e400}}',
    b'{"content":{"text":"\\ud800"}}',
    b'{"content":{"text":"\xff"}}',
    b'{"content":\x00{}}',
    b'{"content":' + b"[" * 9_000 + b"]" * 9_000 + b"}",
]


@pytest.mark.parametrize("text", DAMAGED, ids=lambda text: text[:24].decode("ascii", "replace"))
def test_damaged_json_is_none(text):
    assert decode_stored(text) is None


@pytest.mark.parametrize("number", [10**400, -(10**4_000), 2**64, 0.5])
def test_numbers_of_old_rooms_stay_exact(number):
    text = b'{"content":{"n":%s}}' % str(number).encode()
    assert decode_stored(text) == decode_event(text) == {"content": {"n": number}}
