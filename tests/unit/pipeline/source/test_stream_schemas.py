"""Schemas of streams for Spark follow from their declarations."""

from __future__ import annotations

import pytest

from events import declarations as events_catalog
from events.declarations import BACKFILL, EVENTS
from pipeline.source.stream_schemas import COMMON_COLUMNS, arrow_schema, declaration_of, fact_columns, spark_schema
from streams.catalog import declarations as streams_catalog
from streams.catalog.declarations import CACHES
from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration


def test_columns_of_all_tables_stand_once_in_order_of_appearance():
    names = list(fact_columns(EVENTS))
    assert names[:3] == ["event_id", "room_id", "type"]
    assert len(names) == len(set(names)) == len({column.name for table in EVENTS.tables for column in table.stored})


def test_columns_that_do_not_travel_are_there_for_spark():
    assert "sender" in fact_columns(EVENTS) and "sender" in fact_columns(BACKFILL)
    assert "sender" not in [column.name for table in EVENTS.tables for column in table.columns]


ALL_STREAMS = [declared.name for declared in (*events_catalog.declarations(), *streams_catalog.declarations())]


def test_sixteen_streams_are_known():
    assert len(set(ALL_STREAMS)) == 16


@pytest.mark.parametrize("stream", ALL_STREAMS)
def test_spark_and_arrow_agree_on_the_columns(stream):
    declared = declaration_of(stream)
    assert spark_schema(declared).names == arrow_schema(declared).names


def test_lists_and_numbers_have_their_types():
    kinds = {field.name: field.dataType.simpleString() for field in spark_schema(CACHES)}
    assert kinds == dict(COMMON_COLUMNS) | {
        "cache_name": "string",
        "keys": "array<string>",
        "invalidation_ts": "bigint",
    }


def test_a_name_of_two_kinds_is_refused():
    tables = tuple(FactTable(kind, (Column("x", kind),)) for kind in (ColumnKind.TEXT, ColumnKind.BIGINT))
    with pytest.raises(ValueError, match="column x has two kinds"):
        fact_columns(StreamDeclaration("odd", tables, "seq"))
