"""Amounts in words, and on command lines."""

from __future__ import annotations

from datetime import timedelta

import pytest

from streams.runtime.amounts import byte_size, counted, duration, keep_amount, parse_duration


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
        parse_duration("7")


def test_a_duration_that_cannot_be_counted_is_refused():
    with pytest.raises(ValueError, match="longer than can be counted"):
        parse_duration("999999999w")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"), (-3, "0 s"), (0.004, "0.1 s"), (0.44, "0.4 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"),
        (59.6, "1 min"),
        (185, "3 min 5 s"), (3600, "1 h"), (7440, "2 h 4 min"), (90_000, "1 d 1 h"), (86_400 * 400, "400 d"),
    ],
)  # fmt: skip
def test_durations_have_units_and_two_parts_at_most(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (20_400_000, "20 MB"), (999_600, "1.0 MB"), (5 * 10**15, "5000 TB")],
)
def test_sizes_are_decimal(size, said):
    assert byte_size(size) == said


def test_counted_things_agree_in_number():
    assert [counted(n, "fact") for n in (0, 1, 2000)] == ["0 facts", "1 fact", "2,000 facts"]
