"""Rows of several writers are read in one go, and facts of many rows whole."""

from __future__ import annotations

import pytest
from django.db import connection

from streams.reading.rows import existing_rows
from tests.support.writing import fact, ids, stream

pytestmark = pytest.mark.django_db(transaction=True)


def test_several_writers_are_read_in_one_go():
    with connection.cursor() as cursor:
        for number, writer in enumerate("abcabc", start=2):
            cursor.execute(
                "SET LOCAL streams.maintenance = on; "
                "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name) VALUES (%s, %s, 'c')",
                [number, writer],
            )
        rows, _ = existing_rows(cursor, stream().declaration, ["a", "c"], 1, 9, 100)
        nobodys, reached = existing_rows(cursor, stream().declaration, ["nobody"], 1, 9, 100)
    assert [row.instance for row in rows] == ["a", "c", "a", "c"]
    assert (nobodys, reached) == ([], 9)


def test_a_fact_with_more_rows_than_asked_for_comes_whole():
    with stream().reserve(1) as reservation:
        for _ in range(50):
            row = fact()
            row.stream_id = reservation.ids[0]
            reservation.write(row)
    with connection.cursor() as cursor:
        rows, reached = existing_rows(cursor, stream().declaration, None, ids()[0] - 1, ids()[0], 3)
    assert (len(rows), reached) == (50, ids()[0])
