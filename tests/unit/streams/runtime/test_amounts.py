"""Amounts on command lines."""

from __future__ import annotations

from datetime import timedelta

import pytest

from streams.runtime.amounts import duration, keep_amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("100000", 100_000),
        ("30s", timedelta(seconds=30)),
        ("15m", timedelta(minutes=15)),
        ("12h", timedelta(hours=12)),
        ("7d", timedelta(days=7)),
        ("4w", timedelta(weeks=4)),
    ],
)
def test_a_number_or_a_duration(text, amount):
    assert keep_amount(text) == amount


@pytest.mark.parametrize("text", ["", "-1", "1.5", "d7", "7 d", "7y", "soon", "٣", "1" * 19])
def test_anything_else_is_refused_with_examples(text):
    with pytest.raises(ValueError, match="such as 100000, or a duration such as 30s"):
        keep_amount(text)


def test_a_count_is_no_duration():
    with pytest.raises(ValueError, match="is no duration"):
        duration("7")


def test_a_duration_that_cannot_be_counted_is_refused():
    with pytest.raises(ValueError, match="longer than can be counted"):
        duration("999999999w")
