"""Lines that the database writes are those that Python writes, to the byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.declarations import EVENTS
from streams.catalog.declarations import CACHES
from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration
from streams.core.row_format import IsSet, Literal, RowFormat
from streams.db import driver
from streams.reading.rows import rows_between
from streams.replication.protocol.announcer import Lines, Read, encode_rows
from streams.replication.protocol.rdata_sql import (
    can_write_lines,
    encode_lines,
    few_lines,
    few_rows_sql,
    lines_sql,
    plain_lines,
    plain_lines_sql,
)
from streams.replication.server import broadcast_reader
from tests.support.effort import examples

pytestmark = pytest.mark.django_db

COLUMNS = (
    Column("word", ColumnKind.TEXT, nullable=True),
    Column("number", ColumnKind.BIGINT, nullable=True),
    Column("flag", ColumnKind.BOOLEAN, nullable=True),
    Column("words", ColumnKind.TEXT_ARRAY, nullable=True),
)
FLAT = FactTable("first_facts", COLUMNS)
NESTED = FactTable("second_facts", COLUMNS, row=RowFormat(COLUMNS, Literal("n"), ("words", IsSet("word")), "number"))
ONE = StreamDeclaration("one", (FLAT,), "s")
UNION = StreamDeclaration("union", (FLAT, NESTED), "s")
BACK = StreamDeclaration("back", (FLAT,), "s", backward=True)
MERGED = StreamDeclaration("merged", (FLAT,), "s", announced_as="w")
LIMIT = 16384
GIVEN = {
    "prefix": "RDATA caches w ",
    "between": "\nRDATA caches w ",
    "writer": "w",
    "after": 1,
    "upto": 99_999,
    "limit": 1_000,
}

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
values = st.tuples(
    st.none() | text,
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.booleans(),
    st.none() | st.lists(st.none() | text, max_size=3),
)


@pytest.fixture
def tables(db: None) -> None:
    with connection.cursor() as cursor:
        for name in ("first_facts", "second_facts"):
            cursor.execute(
                f"CREATE TEMPORARY TABLE {name} (id serial, stream_id bigint, instance_name text, "
                "received_at timestamptz DEFAULT now(), word text, number bigint, flag boolean, words text[]) ON COMMIT DROP"
            )


def insert(table: str, token: int, row: Any = ("x", 1, True, []), writer: str = "w") -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (stream_id, instance_name, word, number, flag, words) VALUES (%s, %s, %s, %s, %s, %s)",
            [token, writer, *row],
        )


def both(declaration: StreamDeclaration, after: int, upto: int, limit: int = 100) -> tuple[Any, tuple[Lines, int]]:
    """(what the database wrote, what Python wrote) for one step.

    The plain statement has to write the same, or to show that a fact has several rows.
    """
    step = Read(declaration.name, "w", after, upto)
    given = {"prefix": f"RDATA {step.stream} w ", "writer": "w", "after": after, "upto": upto, "limit": limit}
    with connection.cursor() as cursor:
        cursor.execute(lines_sql(declaration), given)
        result = cursor.fetchone()
        written = encode_lines(step, result, LIMIT)
        if (plain := plain_lines_sql(declaration)) is not None:
            between = f"\n{given['prefix']}"
            cursor.execute(plain, given | {"between": between})
            found = plain_lines(cursor.fetchone(), between, upto, limit)
            if result[1] != result[2]:
                assert found[1] != found[2]
            if found[1] == found[2]:
                assert (*found[:4], found[5]) == (*result[:4], result[5])
                assert encode_lines(step, found, LIMIT) == written
            cursor.execute(few_rows_sql(declaration), given)
            few = few_lines(cursor.fetchall(), given["prefix"], upto)
            if upto - after < limit:
                assert (few[1] == few[2]) == (found[1] == found[2])
                if few[1] == few[2]:
                    assert few[:4] == found[:4] and few[5] == found[5]
                    assert encode_lines(step, few, LIMIT) == written
        rows, reached = rows_between(cursor, declaration, "w", after, upto, limit)
    return written, (encode_rows(step, rows, reached, LIMIT), reached)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=examples(60),
    deadline=None,
)
@given(
    rows=st.lists(st.tuples(st.sampled_from(["first_facts", "second_facts"]), st.integers(2, 6), values), max_size=8),
    declaration=st.sampled_from([ONE, UNION, MERGED]),
    limit=st.integers(1, 9),
)
def test_both_write_the_same_bytes(tables, rows, declaration, limit):
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE first_facts, second_facts")
    for table, token, row in rows:
        insert(table, token, row)
    written, expected = both(declaration, 1, 6, limit)
    if written is not None:  # else a fact has more rows than the limit
        assert written == expected
        for line in written[0].data.splitlines():
            assert line.isascii()


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=examples(60),
    deadline=None,
)
@given(
    rows=st.lists(st.tuples(st.integers(2, 12), values), max_size=8, unique_by=lambda row: row[0]),
    after=st.integers(1, 4),
    limit=st.integers(1, 9),
    backward=st.booleans(),
)
def test_facts_of_one_row_are_the_same_bytes_however_they_are_read(tables, rows, after, limit, backward):
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE first_facts")
    declaration = BACK if backward else ONE
    for token, row in rows:
        insert("first_facts", -token if backward else token, row)
    step = Read(declaration.name, "w", after, 12)
    written, expected = both(declaration, after, 12, limit)
    with connection.cursor() as cursor:
        read, reached = broadcast_reader.read_lines(cursor, declaration, step, LIMIT)
    assert (read.data, reached) == (b"".join(expected_lines(declaration, step, rows)), 12)
    if written is not None:
        assert written == expected


def expected_lines(declaration: StreamDeclaration, step: Read, rows: Any) -> list[bytes]:
    """The lines of the protocol, built with json.dumps alone."""
    due = sorted((token, list(row)) for token, row in rows if token > step.after)
    lines = [f"RDATA {declaration.name} w {token} {json.dumps(row, separators=(',', ':'))}\n" for token, row in due]
    last = due[-1][0] if due else step.after
    lines += [f"POSITION {declaration.name} w {last} {step.upto}\n"] if step.upto > last else []
    return [line.replace("\x7f", "\\u007f").encode() for line in lines]


def test_nothing_to_say_is_a_position(tables):
    insert("first_facts", 3, writer="other")
    written, expected = both(ONE, 2, 5)
    assert written == expected
    assert written[0].data == b"POSITION one w 2 5\n"


def test_rows_of_a_token_stay_together_and_say_batch(tables):
    for token in (2, 3, 3, 3, 4):
        insert("first_facts", token)
    written, expected = both(ONE, 1, 4, limit=3)
    assert written == expected
    assert [line.split()[3] for line in written[0].data.splitlines()] == [b"2"]
    written, expected = both(ONE, 2, 4)
    assert [line.split()[3] for line in written[0].data.splitlines()] == [b"batch", b"batch", b"3", b"4"]


def test_a_limit_on_one_table_of_a_union_bounds_both(tables):
    for token in range(2, 9):
        insert("first_facts", token)
    insert("second_facts", 8)
    written, expected = both(UNION, 1, 9, limit=4)
    assert written == expected
    assert written[1] == 4


def test_a_fact_with_more_rows_than_the_limit_is_left_to_python(tables):
    for _ in range(5):
        insert("first_facts", 2)
    assert both(ONE, 1, 2, limit=3)[0] is None


def test_a_line_that_may_be_too_long_is_left_to_python(tables):
    insert("first_facts", 2, ("a" * LIMIT, 1, True, []))
    assert both(ONE, 1, 2)[0] is None


def test_non_ascii_text_counts_as_long_as_it_becomes(tables):
    insert("first_facts", 2, ("☕" * 3000, 1, True, []))
    written, (lines, _) = both(ONE, 1, 2)
    assert written is None
    assert lines.oversize == 1
    insert("first_facts", 3, ("☕" * 2000, 1, True, []))
    written, expected = both(ONE, 2, 3)
    assert written == expected


def test_a_backward_stream_ascends(tables):
    for token in (-2, -3, -3, -5):
        insert("first_facts", token)
    written, expected = both(BACK, 1, 6)
    assert written == expected
    assert [line.split()[3] for line in written[0].data.splitlines()] == [b"2", b"batch", b"3", b"5", b"5"]


def test_a_stream_under_one_name_has_the_lines_of_all_writers(tables):
    for token, writer in ((2, "north"), (3, "south"), (4, "north")):
        insert("first_facts", token, writer=writer)
    with connection.cursor() as cursor:
        lines, reached = broadcast_reader.read_lines(cursor, MERGED, Read("merged", "w", 1, 4), LIMIT)
    assert [line.split()[2:4] for line in lines.data.splitlines()] == [[b"w", b"2"], [b"w", b"3"], [b"w", b"4"]]
    assert reached == 4


def test_the_union_of_events_can_be_written():
    assert can_write_lines(EVENTS, "master")
    assert not can_write_lines(EVENTS, "mästare")


def test_the_broadcaster_reads_over_a_large_fact(tables, monkeypatch):
    monkeypatch.setattr(broadcast_reader, "ROWS_PER_READ", 3)
    for _ in range(5):
        insert("first_facts", 2, ("é", 1, True, ["k"]))
    with connection.cursor() as cursor:
        lines, reached = broadcast_reader.read_lines(cursor, ONE, Read("one", "w", 1, 2), LIMIT)
    assert (lines.count, lines.facts, reached) == (5, 1, 2)
    assert json.loads(lines.data.splitlines()[-1].split(maxsplit=4)[4])[0] == "é"


def test_a_fact_of_several_rows_is_read_by_the_statement_for_them(tables):
    with connection.cursor() as cursor:
        for token, expected in ((2, ["2"]), (3, ["2", "3"]), (3, ["2", "batch", "3"])):
            insert("first_facts", token)
            for plain in (True, False):
                lines, reached = broadcast_reader.read_lines(cursor, ONE, Read("one", "w", 1, 3), LIMIT, plain=plain)
                assert [line.split()[3].decode() for line in lines.data.splitlines() if b"RDATA" in line] == expected
                assert (lines.facts, lines.rows, reached) == (min(len(expected), 2), len(expected), 3)


@pytest.mark.usefixtures("new_tables")
def test_lines_of_one_row_each_need_neither_windows_nor_a_join(tables):
    """The plain statement goes over the rows once. The general one finds out which rows belong together."""
    plans = {}
    with connection.cursor() as cursor:
        for sql in (lines_sql, plain_lines_sql):
            cursor.execute("EXPLAIN " + sql(ONE), GIVEN | {"prefix": "RDATA one w "})
            plans[sql] = "\n".join(line for (line,) in cursor.fetchall())
    assert "WindowAgg" in plans[lines_sql]
    assert "WindowAgg" not in plans[plain_lines_sql]
    assert not any(word in plans[plain_lines_sql] for word in ("Join", "CTE", "SubPlan"))
    assert plain_lines_sql(UNION) is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("sql", [lines_sql, plain_lines_sql])
def test_a_table_that_was_just_filled_is_walked_along_its_index(new_tables, sql):
    kept = driver.KeptConnection(None, "test", reads_in_order=True)
    try:
        with kept.cursor() as cursor:
            cursor.execute("BEGIN")  # what is inserted goes with the connection
            cursor.execute(
                "SET LOCAL streams.maintenance = on; "
                "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name) "
                "SELECT n, 'w', 'c' FROM generate_series(2, 50000) AS n"
            )
            cursor.execute(cursor.mogrify("EXPLAIN " + sql(CACHES), GIVEN))  # EXPLAIN cannot be prepared
            plan = "\n".join(line for (line,) in cursor.fetchall())
    finally:
        kept.close()
    assert "Index Scan using streams_cacheinvalidation" in plan
    assert "Bitmap" not in plan
    assert sql is lines_sql or "Sort" not in plan


STORED = (Column("word", ColumnKind.JSON_TEXT, nullable=True), Column("number", ColumnKind.BIGINT, nullable=True))
TEXTS = StreamDeclaration("texts", (FactTable("first_facts", STORED, row=RowFormat(STORED, "word", "number")),), "s")


@pytest.mark.parametrize(
    ("stored", "sent"),
    [
        ("{}]\nRDATA events master 9999999 [{}", None),
        ("{}\nPOSITION events master 2 9999999\n{}", None),
        ("{}\rRDATA", None),
        ("once upon a time", None),
        ("", None),
        ("{}], [{}", None),
        ("{},1", None),
        ("NaN", None),
        ("9" * 5_000, None),
        ("1e999", None),
        ("[" * 1_000 + "]" * 1_000, None),
        ('{"a":\n1}', {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        ('{"a":1,"a":2}', {"a": 2}),
        ('"\\ud800"', "\ud800"),
        ('"\x7f\u2028é"', "\x7f\u2028é"),
    ],
)
@pytest.mark.parametrize("many", [1, 1_001])
def test_stored_text_is_one_value_of_its_own_line_whatever_it_is(tables, stored, sent, many):
    """The text of a receipt is stored by whoever may write receipts, and began lines of other streams."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO first_facts (stream_id, instance_name, word, number) "
            "SELECT n, 'w', CASE WHEN n = 2 OR n > 999 THEN %s ELSE '{}' END, n FROM generate_series(2, %s) AS n",
            [stored, 1 + many],
        )
        step = Read("texts", "w", 1, 1 + many)
        lines, reached = broadcast_reader.read_lines(cursor, TEXTS, step, 10**5)
    rows = [line.split(b" ", 4) for line in lines.data.decode("ascii").encode().split(b"\n")[:-1]]
    assert {tuple(row[:3]) for row in rows} == {(b"RDATA", b"texts", b"w")}
    assert (len(rows), reached) == (lines.rows, min(1 + many, 1_000))  # a fact may have more rows beyond the limit
    said = [[json.loads(row[4]), int(row[3])] for row in rows]
    assert said == [[[sent if n == 2 or n > 999 else {}, n], n] for n in range(2, reached + 1)]
