"""Rows by name: their values, their SQL, and what becomes of rows of other versions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from streams.core.declaration import Column, ColumnKind, FactTable
from streams.core.named_rows import NamedRow, Upcasts, from_json, is_compact, object_sql, places_of
from streams.errors import UnknownVersion

TABLE = FactTable(
    "shop_order", (Column("a", ColumnKind.TEXT), Column("b_id", ColumnKind.BIGINT, field="b")), NamedRow(3)
)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (ColumnKind.DECIMAL, "1.50", Decimal("1.50")),
        (ColumnKind.DATETIME, "2026-01-02T03:04:05.000006Z", datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
        (ColumnKind.DURATION, "-PT259192.999991S", -timedelta(seconds=259192, microseconds=999991)),
        (ColumnKind.DURATION, "PT86399999999999.999999S", timedelta.max),
        (ColumnKind.UUID, "00000000-0000-0000-0000-000000000007", UUID(int=7)),
        (ColumnKind.FLOAT, 5, 5.0),
        (ColumnKind.FLOAT, "Infinity", float("inf")),
        (ColumnKind.BINARY, "AP8=", b"\x00\xff"),
        (ColumnKind.TEXT, "x", "x"),
        (ColumnKind.DATE, None, None),
    ],
)
def test_values(kind, value, expected):
    found = from_json(Column("c", kind), value)
    assert (found, type(found)) == (expected, type(expected))


def test_arrays_have_values_of_their_own():
    column = Column("c", ColumnKind.ARRAY, item=ColumnKind.DECIMAL)
    assert from_json(column, ["1.5", None]) == [Decimal("1.5"), None]


def test_the_statement_names_fields_and_quotes_columns():
    sql = object_sql(TABLE)
    assert '"b":' in sql
    assert '"b_id"' in sql
    assert '"@version":3' in sql
    assert is_compact(TABLE)
    assert object_sql(FactTable("t", (), NamedRow())) == """'{"@version":1}'"""
    with pytest.raises(TypeError):
        object_sql(FactTable("t", (Column("a", ColumnKind.TEXT),)))


def test_places_of_values():
    assert places_of(TABLE) == {"a": "a", "b": "b", "b_id": "b"}
    assert places_of(FactTable("t", TABLE.columns)) == {"a": 0, "b_id": 1}


@pytest.fixture
def upcasts() -> Upcasts:
    made = Upcasts("orders")
    made.functions[1] = lambda row: {**row, "b": len(row["a"])}
    return made


def test_this_version_stays(upcasts):
    row = {"a": "x", "b": 1, "@version": 3}
    assert upcasts.row(row, 3, ["a", "b"]) == row


def test_older_rows_go_through_all_versions(upcasts):
    """Version 2 has no function: nothing that this version needs is missing there."""
    assert upcasts.row({"a": "xy", "@version": 1}, 3, ["a", "b"]) == {"a": "xy", "b": 2, "@version": 3}


def test_functions_are_given_a_copy_without_the_version(upcasts):
    seen = []
    upcasts.functions[2] = lambda row: seen.append(dict(row)) or row
    given = {"a": "xy", "@version": 1}
    upcasts.row(given, 3, ["a", "b"])
    assert seen == [{"a": "xy", "b": 2}]
    assert given == {"a": "xy", "@version": 1}


def test_rows_without_names_are_version_0(upcasts):
    upcasts.functions[0] = lambda row: {"a": row[0]}
    assert upcasts.row(["xy", "paid"], 3, ["a", "b"]) == {"a": "xy", "b": 2, "@version": 3}
    with pytest.raises(UnknownVersion, match=r"version 0 lacks a, b, which version 3 has.*upcast\(\.\.\., 0\)"):
        Upcasts("orders").row(["xy"], 3, ["a", "b"])
    del upcasts.functions[0]  # the function of version 1 expects names
    with pytest.raises(UnknownVersion, match=r"upcast\(\.\.\., 0\)"):
        upcasts.row(["xy"], 3, ["a", "b"])


def test_newer_rows_are_read_if_their_fields_suffice(upcasts):
    row = {"a": "x", "b": 1, "c": 2, "@version": 9}
    assert upcasts.row(row, 3, ["a", "b"]) == {"a": "x", "b": 1, "@version": 3}


def test_newer_rows_that_lack_fields_name_both_versions(upcasts):
    with pytest.raises(UnknownVersion, match=r"row of version 9 lacks b, which version 3 has.* too old"):
        upcasts.row({"a": "x", "@version": 9}, 3, ["a", "b"])


def test_an_upcast_that_is_missing_is_named():
    with pytest.raises(UnknownVersion, match=r"version 2 lacks b.*@upcast\(\.\.\., 2\)"):
        Upcasts("orders").row({"a": "x", "@version": 2}, 3, ["a", "b"])


def test_the_same_version_with_other_fields_is_refused(upcasts):
    with pytest.raises(UnknownVersion, match="declares version 3 of this row differently"):
        upcasts.row({"a": "x", "@version": 3}, 3, ["a", "b"])


@pytest.mark.parametrize("row", ["text", 5, None, {"@version": "2"}, {"@version": True}, {"@version": -1}])
def test_what_is_no_row_is_refused(upcasts, row):
    with pytest.raises(UnknownVersion, match="no JSON object with a version"):
        upcasts.row(row, 3, ["a", "b"])


def test_an_upcast_must_return_a_row(upcasts):
    upcasts.functions[1] = lambda row: None
    with pytest.raises(UnknownVersion, match="the upcast from version 1 returned NoneType"):
        upcasts.row({"a": "x", "@version": 1}, 3, ["a", "b"])
