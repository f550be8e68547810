"""Estimating rows, and asking for as many as fit."""

from __future__ import annotations

from streams.replication.common.batch_sizer import BatchSizer
from streams.replication.protocol.ordering import FollowedRow
from streams.replication.protocol.row_size import VALUE_BYTES, row_size


def rows(count: int, length: int) -> list[FollowedRow]:
    return [FollowedRow("s", "w", n, ["x" * length]) for n in range(count)]


def test_every_value_and_the_length_of_texts_count():
    assert row_size([]) == VALUE_BYTES
    assert row_size(["abc", 1, None]) == 4 * VALUE_BYTES + 3
    assert row_size({"key": ["v"]}) == 4 * VALUE_BYTES + 4


def test_a_deep_row_does_not_exhaust_the_stack():
    row: list = []
    for _ in range(20_000):
        row = [row]
    assert row_size(row) > 20_000


def test_small_rows_are_soon_asked_for_by_the_largest_batch():
    pace = BatchSizer(batch_bytes=8_000_000, first_rows=1_000)
    asked = []
    for _ in range(4):
        asked.append(pace.limit(10_000))
        pace.learn(rows(asked[-1], 10))
    assert asked == [1_000, 4_000, 10_000, 10_000]


def test_large_rows_are_asked_for_in_small_batches():
    pace = BatchSizer(batch_bytes=1_000_000, first_rows=1_000)
    pace.learn(rows(100, 100_000))
    assert pace.limit(10_000) == 10
    pace.learn(rows(10, 10))
    assert pace.limit(10_000) == 40


def test_nothing_read_changes_nothing():
    pace = BatchSizer(first_rows=7)
    pace.learn([])
    assert pace.limit(100) == 7
