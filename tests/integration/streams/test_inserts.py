"""Inserting facts: values as the ORM would write them, defaults by the database, many rows at once."""

from __future__ import annotations

import pytest
from django.db import connection

from streams.catalog.models import CacheInvalidation
from streams.holds.maintenance import changing_facts
from streams.writing import insert
from streams.writing.insert import insert_facts, insert_statements

pytestmark = pytest.mark.django_db


def made(number: int, **fields: object) -> CacheInvalidation:
    return CacheInvalidation(stream_id=number, instance_name="north", cache_name="c", **fields)


def test_values_come_back():
    with changing_facts(connection):  # the IDs are made up
        insert_facts(connection, CacheInvalidation, [made(5, keys=["a", "b%s"], invalidation_ts=7)])
    row = CacheInvalidation.objects.get()
    assert (row.stream_id, row.keys, row.invalidation_ts) == (5, ["a", "b%s"], 7)


def test_what_is_not_set_takes_the_default_of_the_column():
    with changing_facts(connection):  # the IDs are made up
        insert_facts(connection, CacheInvalidation, [made(5), made(6, invalidation_ts=1)])
    first, second = CacheInvalidation.objects.order_by("stream_id")
    assert first.invalidation_ts > 1_500_000_000_000
    assert first.received_at is not None
    assert (second.invalidation_ts, second.keys) == (1, None)


def test_missing_values_of_several_rows_stay_missing():
    given = [(5, ["a", 'b"\\'], 1), (6, None, 2), (7, [], 3)]
    with changing_facts(connection):  # the IDs are made up
        insert_facts(connection, CacheInvalidation, [made(n, keys=keys, invalidation_ts=at) for n, keys, at in given])
        insert_facts(connection, CacheInvalidation, [made(n, keys=None, invalidation_ts=n) for n in (8, 9)])
    rows = CacheInvalidation.objects.order_by("stream_id").values_list("stream_id", "keys", "invalidation_ts")
    assert list(rows) == [*given, (8, None, 8), (9, None, 9)]


def test_any_number_of_rows_is_one_statement():
    counts = (2, 3, insert._MOST_ROWS)
    facts = [[made(number, keys=["a"]) for number in range(2, 2 + count)] for count in counts]
    texts = {next(insert_statements(connection, CacheInvalidation, some)).text for some in facts}
    assert len(texts) == 1


def test_more_rows_than_one_statement_takes():
    with changing_facts(connection):  # the IDs are made up
        insert_facts(
            connection, CacheInvalidation, [made(number) for number in range(2, 2 + 2 * insert._MOST_ROWS + 1)]
        )
    assert CacheInvalidation.objects.count() == 2 * insert._MOST_ROWS + 1
