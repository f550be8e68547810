"""Readers in the database look for themselves, and see facts before their positions are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from streams.core.tokens import VectorToken
from streams.db import driver
from streams.follow import Reader
from streams.follow.handlers import Begin, Chunk, Handler
from streams.follow.table_source import Batch, TableSource
from streams.reading import watcher
from streams.reading.possible_positions import seen_positions_and_sequence
from streams.reading.rows import stored_positions
from tests.support.held_tables import ORDERS, Session, Sessions, held_orders, sessions
from tests.support.writing import stream

pytestmark = pytest.mark.django_db(transaction=True)

FACT = "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name) VALUES (nextval(%s), 'north', %s)"


@pytest.fixture
def session() -> Iterator[Sessions]:
    with sessions() as make:
        yield make


@pytest.fixture
def reader(session: Sessions) -> Session:
    return session()


@pytest.fixture
def north(session: Sessions) -> Session:
    own = session()
    own("SET streams.writer = 'north'")
    return own


@pytest.fixture
def caches(transactional_db: None) -> None:
    """The writer ``north`` of the stream ``caches`` is known."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval(%s)", [stream().declaration.sequence])
        cursor.execute(
            "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('caches', 'north', %s)",
            cursor.fetchone(),
        )


def append(own: Session, name: str) -> None:
    own(FACT, stream().declaration.sequence, name)


def names(rows: object) -> list[str]:
    return [row.row[0] for row in rows]  # type: ignore[attr-defined]


def test_a_look_is_ahead_of_the_stored_rows_and_never_of_what_is_open(session: Sessions, reader: Session):
    with held_orders():
        north, south = session(), session()
        north("SET streams.writer = 'north'")
        south("SET streams.writer = 'south'")
        north.append("n")
        assert seen_positions_and_sequence(reader.cursor, ORDERS) == ({}, None)
        reader("INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('orders', 'north', 2), "
               "('orders', 'south', 2)")  # fmt: skip
        north("BEGIN")
        north.append("open")
        south.append("s")
        rows, given = seen_positions_and_sequence(reader.cursor, ORDERS)
        assert ({writer: at.position for writer, at in rows.items()}, given) == ({"north": 2, "south": 4}, 4)
        north("COMMIT")
        rows, _ = seen_positions_and_sequence(reader.cursor, ORDERS)
        assert {writer: at.position for writer, at in rows.items()} == {"north": 4, "south": 4}
        assert {at.position for at in stored_positions(reader.cursor, ["orders"])["orders"].values()} == {2}


def test_a_transaction_with_one_snapshot_has_the_rows_of_its_snapshot(session: Sessions, reader: Session):
    with held_orders():
        reader("INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('orders', 'master', 1)")
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1")
            session().append("later")
            assert seen_positions_and_sequence(cursor, ORDERS)[0]["master"].position == 1
        with connection.cursor() as cursor:
            assert seen_positions_and_sequence(cursor, ORDERS)[0]["master"].position == 2


def take(chunk: Chunk) -> None:
    """Handles nothing."""


@pytest.fixture
def source(caches: None) -> Iterator[TableSource]:
    made = TableSource(Handler("caches", "r", take, begin=Begin.OLDEST), "default")
    yield made
    made.close()


def told(source: TableSource, after: VectorToken) -> Batch:
    """What the reader reads when it is told that there is something."""
    return source.next(after)


def test_a_named_reader_needs_no_stored_position(source: TableSource, north: Session, session: Sessions):
    batch = source.next(source.first_token())
    append(north, "first")
    batch = told(source, batch.cursor)
    assert names(batch.rows) == ["first"]
    slow = session()
    slow("SET streams.writer = 'north'; BEGIN")
    append(slow, "open")
    append(north, "late")
    batch = told(source, batch.cursor)
    assert names(batch.rows) == []
    slow("COMMIT")
    assert names(told(source, batch.cursor).rows) == ["open", "late"]


def test_a_process_that_keeps_values_reads_up_to_the_stored_positions(
    source: TableSource, north: Session, monkeypatch: pytest.MonkeyPatch
):
    """Its caches follow these, so a handler would find a value that the fact before it made outdated."""
    monkeypatch.setattr(watcher, "keeps_values", lambda using: True)
    batch = source.next(source.first_token())
    append(north, "first")
    batch = told(source, batch.cursor)
    assert names(batch.rows) == []
    north("UPDATE streams_streamposition SET position = (SELECT max(stream_id) FROM streams_cacheinvalidation)")
    assert names(told(source, batch.cursor).rows) == ["first"]


@pytest.mark.parametrize("options", [{"using": "elsewhere"}, {"atomic": False}])
def test_what_leaves_the_database_is_read_up_to_the_stored_positions(
    options: dict[str, Any], caches: None, north: Session
):
    """A crash can take back what a look saw. It would not take back a cursor or an effect that lies elsewhere."""
    (stored,) = stored_positions(north.cursor, ["caches"])["caches"].values()
    source = TableSource(Handler("caches", "r", take, begin=Begin.NOW, **options), "default")
    try:
        append(north, "first")
        begin = source.first_token()
        assert begin == VectorToken(stored.position)
        batch = source.next(begin)
        assert (names(batch.rows), batch.cursor) == ([], begin)
        north("UPDATE streams_streamposition SET position = (SELECT max(stream_id) FROM streams_cacheinvalidation)")
        assert names(told(source, batch.cursor).rows) == ["first"]
    finally:
        source.close()


def test_catching_up_takes_the_first_fact_of_a_writer_though_the_looker_stands_still(session, north):
    leader = session()
    with connection.cursor() as cursor:
        leader("SELECT pg_advisory_lock(%s)", driver.looker_key(cursor))
    append(north, "first")
    seen: list[str] = []
    handler = Handler("caches", "late", lambda chunk: seen.extend(names(chunk.rows)), begin=Begin.OLDEST)
    Reader("late", [handler]).catch_up()
    assert seen == ["first"]


def test_a_cursor_moves_only_while_the_session_that_looked_lives(session: Sessions, north: Session):
    """A crash ends it. A pooler hides that from the handler's connection, which would move on to what the crash took back."""
    append(north, "first")
    calls: list[list[str]] = []

    def handle(chunk: Chunk) -> None:
        calls.append(names(chunk.rows))
        if len(calls) == 1:
            end = (
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'replsite fetch late'"
            )
            assert session()(end) == [(True,)]

    Reader("late", [Handler("caches", "late", handle, begin=Begin.OLDEST)]).catch_up()
    assert calls == [["first"], ["first"]]
