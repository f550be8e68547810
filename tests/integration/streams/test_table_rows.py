"""The fast way to read missed facts gives what the plain way gives, in bounded pieces."""

from __future__ import annotations

import pytest
from django.db import connection

from streams import registry
from streams.reading.rows import rows_between
from streams.replication.common.table_rows import FactRange, table_rows
from tests.support.writing import fact, ids, stream

pytestmark = pytest.mark.django_db(transaction=True)
ODD = ["", "ünï", "a\\b", 'q"q', "\n\t", "{}", "\u2028", "😀" * 50]


@pytest.fixture
def table() -> None:
    """Facts of two writers, some of several rows, with odd texts."""
    with connection.cursor() as cursor:
        for number in range(2, 60):
            for row in range(1 + number % 3):
                cursor.execute(
                    "SET LOCAL streams.maintenance = on; "
                    "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name, keys) VALUES (%s, %s, %s, %s)",
                    [number, "north" if number % 4 else "south", ODD[(number + row) % len(ODD)], ODD if row else None],
                )


@pytest.mark.parametrize("writer", [None, "north", "south", "nobody"])
@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
@pytest.mark.usefixtures("table")
def test_both_ways_agree(writer, limit):
    declaration = stream().declaration
    after = 3
    with connection.cursor() as cursor:
        while after < 55:
            plain, reached = rows_between(cursor, declaration, writer, after, 55, limit)
            wanted = FactRange(after, 55, None if writer is None else [writer])
            fast, also_reached = table_rows(cursor, declaration, wanted, limit)
            assert [(row.token, row.instance, row.row) for row in fast] == [(r.token, r.writer, r.row) for r in plain]
            assert also_reached == reached > after
            after = reached


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_both_ways_agree_on_a_union_of_tables(limit):
    with connection.cursor() as cursor:
        for number in range(2, 12):
            cursor.execute(
                "SET LOCAL streams.maintenance = on; "
                "INSERT INTO events_event (stream_ordering, instance_name, event_id, room_id, type, sender,"
                " topological_ordering, origin_server_ts) VALUES (%s, 'north', %s, '!r', 'm', '@u', 1, 1)",
                [number * (1 if number % 2 else -1), f"${number}"],
            )
            cursor.execute(
                "SET LOCAL streams.maintenance = on; "
                "INSERT INTO events_currentstatedelta (stream_ordering, instance_name, room_id, type, state_key)"
                " VALUES (%s, 'north', '!r', 'm', 'k')",
                [number],
            )
        for name in ("events", "backfill"):
            declaration, after = registry.get(name).declaration, 1
            while after < 20:
                plain, reached = rows_between(cursor, declaration, None, after, 20, limit)
                fast, also_reached = table_rows(cursor, declaration, FactRange(after, 20), limit)
                assert [(row.token, row.row) for row in fast] == [(row.token, row.row) for row in plain]
                assert also_reached == reached
                after = reached


def test_several_writers_are_read_in_one_go():
    with connection.cursor() as cursor:
        for number, writer in enumerate("abcabc", start=2):
            cursor.execute(
                "SET LOCAL streams.maintenance = on; "
                "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name) VALUES (%s, %s, 'c')",
                [number, writer],
            )
        rows, _ = table_rows(cursor, stream().declaration, FactRange(1, 9, ["a", "c"]), 100)
    assert [row.instance for row in rows] == ["a", "c", "a", "c"]


def test_a_fact_with_more_rows_than_asked_for_comes_whole():
    with stream().reserve(1) as reservation:
        for _ in range(50):
            row = fact()
            row.stream_id = reservation.ids[0]
            reservation.write(row)
    with connection.cursor() as cursor:
        rows, reached = table_rows(cursor, stream().declaration, FactRange(ids()[0] - 1, ids()[0], None), 3)
    assert (len(rows), reached) == (50, ids()[0])
