"""The SQL of reading, and cutting what was read at whole tokens."""

from __future__ import annotations

import pytest

from events.declarations import BACKFILL, EVENTS
from streams.catalog.declarations import CACHES
from streams.core.declaration import quoted
from streams.core.queries import bounds_sql, cut_whole_tokens, maximum_sql, order_sql, read_whole, rows_sql


def rows(*tokens: int) -> list[tuple[int]]:
    return [(token,) for token in tokens]


def test_everything_was_read():
    assert cut_whole_tokens([rows(2, 3, 3)], 9, 10) == (9, [rows(2, 3, 3)])


def test_last_token_of_a_full_batch_may_be_incomplete():
    assert cut_whole_tokens([rows(2, 3, 3)], 9, 3) == (2, [rows(2)])


def test_one_table_that_was_cut_cuts_the_others():
    assert cut_whole_tokens([rows(2, 3, 4), rows(2, 5, 7)], 9, 3) == (3, [rows(2, 3), rows(2)])


def test_a_token_that_fills_the_batch_leaves_nothing():
    reached, left = cut_whole_tokens([rows(5, 5, 5)], 9, 3)
    assert (reached, left) == (4, [[]])


def test_nothing_to_read():
    assert cut_whole_tokens([[], []], 9, 3) == (9, [[], []])


def test_limit_that_is_not_reached_by_any_table_alone():
    assert cut_whole_tokens([rows(2, 3), rows(2, 3)], 9, 3) == (9, [rows(2, 3), rows(2, 3)])


@pytest.mark.parametrize("of_writers", [True, False])
@pytest.mark.parametrize("declaration", [CACHES, EVENTS, BACKFILL], ids=lambda declaration: declaration.name)
def test_every_parameter_is_named(declaration, of_writers):
    for table in declaration.tables:
        sql = rows_sql(declaration, table, of_writers=of_writers)
        parameters = {"after": 1, "upto": 2, "limit": 3, "writers": ["w"]}
        assert "%" not in sql % dict.fromkeys(parameters, "X")
        assert (f"{quoted(table.writer_column)} = ANY(%(writers)s)" in sql) is of_writers
        assert table.received_column not in sql


def test_a_fact_with_more_rows_than_the_limit_is_read_whole():
    asked = []

    def fetch(table, limit):
        asked.append(limit)
        return rows(2, 2, 2, 3)[:limit]

    assert read_whole(CACHES, fetch, (1, 9), 2) == (9, [rows(2, 2, 2, 3)])
    assert asked == [2, 20]


def test_reading_ends_though_a_fact_has_more_rows_than_can_be_read():
    asked = []

    def fetch(table, limit):
        asked.append(limit)
        return [(2, 0)] * min(limit, 3_000_000)

    reached, whole = read_whole(CACHES, fetch, (1, 9), 100_000)
    assert (reached, whole) == (1, [[]])
    assert asked == [100_000, 1_000_000]


def test_backward_streams_compare_with_the_sign_changed():
    sql = rows_sql(BACKFILL, BACKFILL.tables[0])
    assert '"stream_ordering" < -(%(after)s::bigint) AND "stream_ordering" >= -(%(upto)s::bigint)' in sql
    assert 'ORDER BY "stream_ordering" DESC' in sql
    assert '-min("stream_ordering")' in maximum_sql(BACKFILL)


def test_bounds_may_be_columns():
    assert bounds_sql(CACHES, CACHES.tables[0], "b.low", "b.high") == '"stream_id" > b.low AND "stream_id" <= b.high'


@pytest.mark.parametrize(("declaration", "newest_first", "way"), [
    (CACHES, False, "ASC"), (CACHES, True, "DESC"), (BACKFILL, False, "DESC"), (BACKFILL, True, "ASC"),
])  # fmt: skip
def test_order_of_ids_is_that_of_tokens_with_the_sign_changed(declaration, newest_first, way):
    assert order_sql(declaration, declaration.tables[0], newest_first=newest_first).endswith(way)


def test_condition_of_a_shared_table_is_kept_everywhere():
    for sql in (rows_sql(EVENTS, EVENTS.tables[0]), maximum_sql(EVENTS)):
        assert "stream_ordering > 0" in sql


def test_columns_that_do_not_travel_are_not_read():
    assert "sender" not in rows_sql(EVENTS, EVENTS.tables[0])
