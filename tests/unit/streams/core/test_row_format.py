"""Rows from shapes, in Python; the SQL half is held against it in tests/integration/streams/test_line_sql.py."""

import json

import pytest

from events.declarations import EVENTS
from streams.catalog.declarations import CACHES
from streams.core.declaration import Column, ColumnKind, FactTable
from streams.core.queries import row_of
from streams.core.row_format import IsSet, Literal, RowFormat, row_sql

COLUMNS = (Column("a", ColumnKind.TEXT), Column("b", ColumnKind.BIGINT, nullable=True))


def test_a_flat_shape_is_the_list_of_its_columns():
    assert RowFormat(COLUMNS, "b", "a")(["x", 1]) == [1, "x"]


def test_shapes_nest():
    assert RowFormat(COLUMNS, Literal("ev"), ("a", IsSet("b")))(["x", None]) == ["ev", ["x", False]]


def test_an_unknown_column_is_named():
    with pytest.raises(ValueError, match="'c'"):
        RowFormat(COLUMNS, "c")


@pytest.mark.parametrize("text", ['"', "\\", "'", "ä", "%", "\n"])
def test_a_literal_needs_no_escapes(text):
    with pytest.raises(ValueError, match="literal"):
        RowFormat(COLUMNS, Literal(text))


def test_rows_of_the_events_stream():
    event, state = EVENTS.tables
    values = ["$e", "!r", "m.room.member", "@u", None, None, "join", "reason"]
    assert event.row(values) == ["ev", ["$e", "!r", "m.room.member", "@u", None, None, "join", True]]
    assert event.row([*values[:-1], None])[1][-1] is False
    assert state.row(["!r", "t", "", None]) == ["state", ["!r", "t", "", None]]


def test_only_python_can_write_json_columns_and_rows_of_its_own():
    json_column = (Column("data", ColumnKind.JSON),)
    assert row_sql(FactTable("t", json_column)) is None
    assert row_sql(FactTable("t", COLUMNS, row=tuple)) is None
    assert row_sql(CACHES.tables[0]) is not None


def test_deep_json_is_read_wherever_the_caller_is():
    def called(depth, work):
        return work() if not depth else called(depth - 1, work)

    shape = RowFormat((Column("a", ColumnKind.JSON_TEXT),), "a")
    table = FactTable("t", (Column("a", ColumnKind.JSON),), row=lambda values: values)
    text = "[" * 850 + "]" * 850
    for work in (shape, row_of(table)):
        assert called(300, lambda: work([text])) == [json.loads(text)]  # noqa: B023 - called in this round
