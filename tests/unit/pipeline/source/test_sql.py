"""The SQL of the Spark source."""

from __future__ import annotations

from events.declarations import BACKFILL, EVENTS
from pipeline.source.filters import Condition
from pipeline.source.offsets import pieces
from pipeline.source.sql import cuts_sql, rows_of_piece_sql
from streams.catalog.declarations import CACHES
from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration

(PIECE,) = pieces({"o'neil": (3, 9), "late": (5, 9)}, [])


def test_rows_of_writers_between_their_own_bounds():
    assert rows_of_piece_sql(CACHES, CACHES.tables[0], PIECE, ["token", "fact_table", "keys"]) == (
        """SELECT "stream_id" AS token, "keys" FROM "streams_cacheinvalidation" WHERE "stream_id" > 3 AND "stream_id" <= 9 """
        """AND (("instance_name" IN ('late') AND "stream_id" > 5 AND "stream_id" <= 9) OR "instance_name" IN ('o''neil')) """
        'ORDER BY "stream_id" ASC, "id"'
    )


def test_a_backward_stream_is_read_along_its_index():
    text = rows_of_piece_sql(BACKFILL, BACKFILL.tables[0], PIECE, ["token"])
    assert 'SELECT -"stream_ordering" AS token' in text
    assert '"stream_ordering" < -(3) AND "stream_ordering" >= -(9)' in text
    assert text.endswith('ORDER BY "stream_ordering" DESC')


def test_filters_are_part_of_the_condition():
    text = rows_of_piece_sql(CACHES, CACHES.tables[0], PIECE, ["token"], [Condition("cache_name", "=", ("c",))])
    assert "AND \"cache_name\" = 'c' ORDER" in text


def test_columns_that_a_table_has_not_are_not_asked_for():
    assert rows_of_piece_sql(EVENTS, EVENTS.tables[1], PIECE, ["membership"]).startswith("SELECT 1 AS nothing FROM")


def test_json_is_read_as_its_text():
    table = FactTable("t", (Column("data", ColumnKind.JSON),))
    declared = StreamDeclaration("json", (table,), "seq")
    assert 'SELECT "data"::text AS "data" FROM' in rows_of_piece_sql(declared, table, PIECE, ["data"])


def test_rows_are_counted_over_all_tables_and_no_further_than_needed():
    text = cuts_sql(EVENTS, PIECE, 100, 250)
    assert text.count("LIMIT 251") == text.count('FROM "events_') == 2
    assert text.endswith("WHERE n % 100 = 0 OR n = 1 OR n = 251 ORDER BY n")


def test_a_table_that_cannot_pass_is_not_counted():
    text = cuts_sql(EVENTS, PIECE, 100, None, [Condition("fact_table", "=", ("events_event",))])
    assert "events_currentstatedelta" not in text
    assert "LIMIT ALL" in text
    assert "WHERE false" in cuts_sql(EVENTS, PIECE, 100, None, [Condition("fact_table", "=", ("x",))])
