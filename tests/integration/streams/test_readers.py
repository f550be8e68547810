"""Reading facts from the tables: whole tokens, in order, by index."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection

from streams import registry
from streams.core.queries import rows_sql
from streams.reading.rows import linear_position, rows_between, stored_positions
from tests.support.writing import append, fact, ids, stream

pytestmark = pytest.mark.django_db(transaction=True)


def insert(writer: str, *numbers: int) -> None:
    """Rows as a writer of that name would have left them."""
    with connection.cursor() as cursor:
        for number in numbers:
            cursor.execute(
                "SET LOCAL streams.maintenance = on; "
                "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name) VALUES (%s, %s, 'c')",
                [number, writer],
            )


def read(writer: str | None, after: int, upto: int, limit: int = 100) -> tuple[list[int], int]:
    with connection.cursor() as cursor:
        rows, reached = rows_between(cursor, stream().declaration, writer, after, upto, limit)
    return [row.token for row in rows], reached


def test_rows_of_one_writer_after_and_up_to():
    insert("north", 2, 4, 6, 8)
    insert("south", 3, 5)
    assert read("north", 2, 6) == ([4, 6], 6)


def test_rows_of_all_writers():
    insert("north", 2, 4)
    insert("south", 3)
    assert read(None, 1, 9) == ([2, 3, 4], 9)


def test_nothing_left_reaches_the_end():
    assert read("north", 5, 9) == ([], 9)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7])
def test_limits_never_split_a_token_and_lose_nothing(limit):
    insert("north", 2, 3, 3, 3, 4, 5, 5, 6, 6, 6, 6, 7)
    seen: list[int] = []
    after = 1
    while after < 9:
        tokens, reached = read("north", after, 9, limit)
        assert reached > after
        assert all(after < token <= reached for token in tokens)
        seen, after = seen + tokens, reached
    assert seen == [2, 3, 3, 3, 4, 5, 5, 6, 6, 6, 6, 7]


def test_row_is_what_travels():
    append()
    with connection.cursor() as cursor:
        rows, _ = rows_between(cursor, stream().declaration, "master", 1, ids()[0], 10)
    assert rows[0].row[:2] == ["test", ["k"]]
    assert (rows[0].instance, rows[0].token) == ("master", ids()[0])


def test_null_keys_stay_null():
    everything = fact()
    everything.keys = None
    stream().append(everything)
    with connection.cursor() as cursor:
        rows, _ = rows_between(cursor, stream().declaration, "master", 1, ids()[0], 10)
    assert rows[0].row[1] is None


def event(number: int, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SET LOCAL streams.maintenance = on; "
            "INSERT INTO events_event (stream_ordering, instance_name, event_id, room_id, type, sender, topological_ordering,"
            " origin_server_ts) VALUES (%s, 'north', %s, '!r', 'm', '@u', 1, 1)",
            [number, name],
        )


def delta(number: int, key: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SET LOCAL streams.maintenance = on; "
            "INSERT INTO events_currentstatedelta (stream_ordering, instance_name, room_id, type, state_key)"
            " VALUES (%s, 'north', '!r', 'm', %s)",
            [number, key],
        )


def read_of(name: str, after: int, upto: int, limit: int) -> tuple[list[tuple[int, Any]], int]:
    with connection.cursor() as cursor:
        rows, reached = rows_between(cursor, registry.get(name).declaration, "north", after, upto, limit)
    return [(row.token, row.row) for row in rows], reached


def test_tables_of_a_union_are_merged_in_their_order():
    for number in (2, 3, 5):
        event(number, f"${number}")
    for number, key in ((3, "b"), (3, "a"), (4, "c")):
        delta(number, key)
    rows, _ = read_of("events", 1, 9, 100)
    assert [(token, row[0]) for token, row in rows] == [
        (2, "ev"),
        (3, "ev"),
        (3, "state"),
        (3, "state"),
        (4, "state"),
        (5, "ev"),
    ]
    assert [row[1][2] for token, row in rows if row[0] == "state"] == ["b", "a", "c"], (
        "rows of a fact in order of insertion"
    )


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_union_is_cut_at_whole_tokens_over_all_tables(limit):
    for number in (2, 3, 4):
        event(number, f"${number}")
    for number in (2, 2, 2, 3, 4, 4):
        delta(number, "k")
    seen: list[int] = []
    after = 1
    while after < 5:
        rows, reached = read_of("events", after, 5, limit)
        seen, after = seen + [token for token, _ in rows], reached
    assert seen == [2] * 4 + [3] * 2 + [4] * 3


def test_backward_streams_are_read_in_positive_ascending_numbers():
    for number in (-2, -3, -5, 7):
        event(number, f"${number}")
    rows, reached = read_of("backfill", 1, 9, 2)
    assert [token for token, _ in rows] == [2]
    assert reached == 2
    assert [token for token, _ in read_of("backfill", 2, 9, 100)[0]] == [3, 5]


def test_stored_positions_are_positive_and_by_stream():
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO streams_streamposition (stream, instance_name, position, state) VALUES"
            " ('backfill', 'north', -7, 'active'), ('caches', 'north', 9, 'retired'), ('caches', 'south', 5, 'active')"
        )
        found = stored_positions(cursor)
        assert stored_positions(cursor, ["caches"]).keys() == {"caches"}
    assert found["backfill"]["north"].position == 7
    assert linear_position(found["caches"].values()) == 5


def plan_of(name: str, **more: Any) -> str:
    """The plan of reading a stream's tail, as text; the tables hold 20,000 rows of two writers."""
    declaration = registry.get(name).declaration
    sql = rows_sql(declaration, declaration.tables[0], of_writers=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "EXPLAIN (FORMAT JSON) " + sql, {"after": 19_000, "upto": 19_100, "writers": ["north"], "limit": 100}
        )
        plan = cursor.fetchone()[0]
    return json.dumps(plan)


@pytest.mark.usefixtures("new_tables")
def test_reading_the_tail_uses_the_index():
    with connection.cursor() as cursor:
        cursor.execute(
            "SET LOCAL streams.maintenance = on; "
            "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name)"
            " SELECT n, CASE n %% 2 WHEN 0 THEN 'north' ELSE 'south' END, 'c' FROM generate_series(2, 20000) n",
            [],
        )
        cursor.execute(
            "SET LOCAL streams.maintenance = on; "
            "INSERT INTO events_event (stream_ordering, instance_name, event_id, room_id, type, sender,"
            " topological_ordering, origin_server_ts) SELECT CASE WHEN n %% 2 = 0 THEN n ELSE -n END, 'north', '$' || n, '!r',"
            " 'm', '@u', 1, 1 FROM generate_series(2, 20000) n",
            [],
        )
        cursor.execute("ANALYZE streams_cacheinvalidation")
        cursor.execute("ANALYZE events_event")
    for name in ("caches", "events", "backfill"):
        plan = plan_of(name)
        assert "Seq Scan" not in plan, name
        assert "Index Scan" in plan, name
