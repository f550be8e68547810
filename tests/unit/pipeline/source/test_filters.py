"""Filters that the Spark source takes over from Spark, and those that it must not."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from events.declarations import BACKFILL, EVENTS
from pipeline.source.filters import Condition, accepted, condition_sql, tables_of, token_range, writers_of
from pipeline.source.literals import literal
from streams.catalog.declarations import CACHES
from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration

JSON = StreamDeclaration("json", (FactTable("t", (Column("data", ColumnKind.JSON),)),), "seq")


def condition(given, declaration=CACHES):
    (found,), left = accepted([given], declaration)
    assert not left
    return found


def sql(given, declaration=CACHES, table=0):
    return condition_sql(condition(given, declaration), declaration, declaration.tables[table])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (EqualTo(("cache_name",), "it's"), "\"cache_name\" = 'it''s'"),
        (EqualTo(("cache_name",), "a\\b"), "\"cache_name\" = E'a\\\\b'"),
        (EqualNullSafe(("cache_name",), "c"), "\"cache_name\" = 'c'"),
        (EqualNullSafe(("cache_name",), None), '"cache_name" IS NULL'),
        (In(("cache_name",), ("a", None, "b")), "\"cache_name\" IN ('a', 'b')"),
        (In(("cache_name",), (None,)), "false"),
        (IsNull(("keys",)), '"keys" IS NULL'),
        (IsNotNull(("keys",)), '"keys" IS NOT NULL'),
        (LessThan(("invalidation_ts",), 5), '"invalidation_ts" < (5::bigint)'),
        (GreaterThanOrEqual(("token",), 5), '"stream_id" >= (5::bigint)'),
        (EqualTo(("writer",), "w"), "\"instance_name\" = 'w'"),
    ],
)
def test_a_filter_in_sql(given, text):
    assert sql(given) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (GreaterThanOrEqual, "\"received_at\" >= '1970-01-01T00:00:01+00:00'::timestamptz"),
        (GreaterThan, "\"received_at\" >= '1970-01-01T00:00:01.001000+00:00'::timestamptz"),
        (LessThan, "\"received_at\" < '1970-01-01T00:00:01+00:00'::timestamptz"),
        (LessThanOrEqual, "\"received_at\" < '1970-01-01T00:00:01.001000+00:00'::timestamptz"),
    ],
)
def test_a_time_in_milliseconds_is_a_stretch_of_stored_times(given, text):
    assert text in sql(given(("received_at_ms",), 1000))


@pytest.mark.parametrize("far", [2**62, -(2**62)])
def test_a_time_that_no_calendar_has_is_beyond_every_row(far):
    assert "infinity" in sql(GreaterThan(("received_at_ms",), far))


@pytest.mark.parametrize(
    "given",
    [
        GreaterThan(("cache_name",), "a"),  # text is ordered otherwise there
        StringStartsWith(("cache_name",), "a"),
        EqualTo(("cache_name",), "nul\0"),
        EqualTo(("cache_name",), 5),
        EqualTo(("invalidation_ts",), True),
        EqualTo(("invalidation_ts",), 2**63),
        EqualTo(("keys",), ["a"]),
        EqualTo(("keys", "inner"), "a"),
        EqualTo(("nonsense",), "a"),
        Not(EqualTo(("cache_name",), "a")),
    ],
)
def test_what_is_not_the_same_in_postgresql_is_left_to_spark(given):
    assert accepted([given], CACHES) == ([], [given])


def test_json_is_compared_by_spark():
    given = [EqualTo(("data",), "{}"), IsNull(("data",))]
    taken, left = accepted(given, JSON)
    assert (taken, left) == ([Condition("data", "null")], given[:1])


def test_a_column_that_the_table_has_not_is_null():
    assert sql(EqualTo(("membership",), "join"), EVENTS, table=1) == "false"
    assert sql(IsNull(("membership",)), EVENTS, table=1) == "true"


def test_tokens_of_a_backward_stream_are_positive():
    assert sql(LessThan(("token",), 7), BACKFILL) == '-"stream_ordering" < (7::bigint)'


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ([GreaterThan(("token",), 5), LessThanOrEqual(("token",), 9)], (5, 9)),
        ([GreaterThanOrEqual(("token",), 5), LessThan(("token",), 9)], (4, 8)),
        ([EqualTo(("token",), 5)], (4, 5)),
        ([In(("token",), (7, 3, 5))], (2, 7)),
        ([In(("token",), (7, 3)), GreaterThan(("token",), 4), LessThan(("token",), 6)], (4, 5)),
        ([IsNotNull(("token",)), EqualTo(("writer",), "w")], (None, None)),
    ],
)
def test_tokens_are_read_within_the_filters_bounds(given, bounds):
    assert token_range(accepted(given, CACHES)[0]) == bounds


def test_only_writers_that_may_pass_are_read():
    assert writers_of([condition(In(("writer",), ("a", "b")))], ["b", "c"]) == {"b"}
    assert writers_of([condition(IsNull(("writer",)))], ["b"]) == set()
    assert writers_of([condition(IsNotNull(("writer",)))], ["b"]) == {"b"}


def test_only_tables_that_may_pass_are_read():
    found = tables_of([condition(EqualTo(("fact_table",), "events_event"), EVENTS)], EVENTS)
    assert [table.name for table in found] == ["events_event"]


def test_values_are_quoted():
    assert [literal(value) for value in (True, 7, "a'b", "a\\'b")] == ["true", "(7::bigint)", "'a''b'", "E'a\\\\''b'"]
