"""The linear position by the table of positions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from streams.readers import StoredPosition, linear_position

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("writers", "expected"),
    [
        ([], 1),
        ([(5, "active")], 5),
        ([(5, "active"), (3, "active")], 3),
        ([(5, "active"), (3, "retired")], 5),
        ([(5, "active"), (9, "retired")], 5),
        ([(5, "draining"), (7, "active")], 5),
        ([(5, "retired"), (7, "retired")], 7),
    ],
)
def test_linear_position(writers, expected):
    rows = [StoredPosition("s", f"w{n}", at, state, NOW, NOW, 0, None, None) for n, (at, state) in enumerate(writers)]
    assert linear_position(iter(rows)) == expected
