"""The rows that stand for what depends on a room's state."""

from __future__ import annotations

from streams.core.invalidation import room_state_keys


def test_a_row_has_fifty_users_at_most():
    assert room_state_keys("!r", []) == [["!r"]]
    assert room_state_keys("!r", ["@a", "@b"]) == [["!r", "@a", "@b"]]
    assert [len(keys) for keys in room_state_keys("!r", [f"@{n}" for n in range(60)])] == [51, 11]
