"""What a reader reads next, and what of it is due."""

from __future__ import annotations

import pytest

from streams.core.tokens import VectorToken
from streams.replication.protocol.ordering import FollowedRow, View
from streams.replication.protocol.range_math import ReadRange, due_rows, next_range, target_of


def vector(base: int, **entries: int) -> VectorToken:
    return VectorToken(base, entries)


@pytest.mark.parametrize(
    ("cursor", "target", "reading"),
    [
        (vector(5), vector(5), None),
        (vector(5), vector(9), ReadRange(5, 9, None)),
        (vector(5), vector(5, a=8), ReadRange(5, 8, ("a",))),
        (vector(5, a=8), vector(5, a=8), None),
        (vector(5, a=8), vector(5, a=9, b=7), ReadRange(5, 9, ("a", "b"))),
        (vector(5, a=8, b=7), vector(5, a=9, b=7), ReadRange(8, 9, ("a",))),  # b, which holds back, is not read again
        (vector(5, a=8), vector(7, a=9), ReadRange(5, 7, None)),  # first all up to the base
        (vector(7, a=8), vector(5), None),  # a target that is behind: an older snapshot
    ],
)
def test_what_is_read_next(cursor, target, reading):
    assert next_range(cursor, target) == reading


def test_the_linear_view_looks_at_no_writer_alone():
    assert target_of(View.LINEAR, 5, {"a": 9}) == vector(5)
    assert target_of(View.WRITER, 5, {"a": 9, "b": 5}) == vector(5, a=9)


def test_rows_that_the_cursor_covers_or_the_target_does_not_are_left_out():
    rows = [FollowedRow("s", writer, token, None) for token, writer in enumerate("abababab", start=4)]
    found = due_rows(rows, vector(4, a=6), vector(7, a=10))
    assert [(row.instance, row.token) for row in found] == [("b", 5), ("b", 7), ("a", 8), ("a", 10)]


def test_without_entries_everything_is_due():
    rows = [FollowedRow("s", "a", 5, None)]
    assert due_rows(rows, vector(4), vector(9)) is rows
