"""What a handler loop reads depends on the database alone: facts that are committed, and nothing above an open one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest
from django.db import connection, transaction

from pipeline.connections import connect
from streams.core.tokens import VectorToken
from streams.db import driver
from streams.errors import ResyncNeeded
from streams.follow import Begin, Handler, View
from streams.follow.stored_cursors import CursorMoved
from streams.follow.table_source import TableSource
from streams.models import StreamPosition
from tests.support.writing import append, as_instance, other_writer, store_positions, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=[View.WRITER, View.LINEAR])
def source(request) -> Iterator[TableSource]:
    """A source that has read the first fact, with the positions by the table."""
    wait_for_linear(append(1)[0])
    handler = Handler("caches", "r", print, begin=Begin.OLDEST, view=request.param)
    source = TableSource(handler, "default")
    try:
        source.first_token()
        source.next(source.next(VectorToken(0)).cursor)
        yield source
    finally:
        source.close()


@pytest.fixture
def cursor(source) -> VectorToken:
    return source.next(VectorToken(0)).cursor


def tokens(batch) -> list[int]:
    return [row.token for row in batch.rows]


def test_facts_come_as_soon_as_they_are_committed_and_not_before(source, cursor):
    with transaction.atomic():
        held = append(1)[0]
        batch = source.next(cursor)
        assert tokens(batch) == [] and not batch.cursor.covers("master", held)
    assert tokens(source.next(batch.cursor)) == [held]  # nobody has stored a position since


def test_positions_that_went_back_let_a_reader_begin_again_whose_cursor_lies_elsewhere(positions_by_hand):
    """A dump that was loaded in one transaction ends no session. The reader did not ask for the epoch, and passed facts."""
    (number,) = append(1)
    StreamPosition.objects.update_or_create({"position": number}, stream="caches", instance_name="master")
    with closing(TableSource(Handler("caches", "r", print, atomic=False), "default")) as source:
        cursor = source.next(VectorToken(number - 1)).cursor
        StreamPosition.objects.filter(stream="caches").update(position=number - 1)
        with pytest.raises(CursorMoved):
            source.next(cursor)
        assert tokens(source.next(cursor)) == []


def test_facts_that_were_found_are_read_before_the_next_look(source, cursor, monkeypatch):
    monkeypatch.setattr(source._pace, "_rows", 2)
    monkeypatch.setattr(source._pace, "learn", lambda rows: None)
    looks, look = [], source._read_target
    monkeypatch.setattr(source, "_read_target", lambda *arguments: looks.append(1) or look(*arguments))
    numbers = append(6)
    found = []
    while len(found) < 6:
        batch = source.next(cursor)
        found += tokens(batch)
        cursor = batch.cursor
    assert (found, batch.is_last, len(looks)) == (numbers, True, 1)


def test_an_open_fact_of_a_writer_that_nobody_knows_holds_the_others(source, cursor):
    with other_writer("north") as north:
        north.execute("BEGIN")
        north.execute(
            "INSERT INTO streams_cacheinvalidation (cache_name, keys) VALUES ('c', '{k}') RETURNING stream_id"
        )
        held = north.fetchone()[0]
        later = append(1)[0]
        batch = source.next(cursor)
        assert batch.target.highest < held and tokens(batch) == []
        north.execute("COMMIT")
    store_positions()  # north is known from now on
    assert tokens(source.next(batch.cursor)) == [held, later]


def test_facts_of_two_writers_come_once_each_and_in_order(source, cursor):
    found, expected = [], []
    with as_instance("north"):
        expected += append(2)
    expected += append(2)
    wait_for_linear(expected[-1])
    while batch := source.next(cursor):
        found += tokens(batch)
        cursor = batch.cursor
        if not batch.rows:
            break
    assert found == expected


def test_trimmed_facts_are_missed_with_an_error(source, cursor):
    numbers = append(3)
    wait_for_linear(numbers[-1])
    with connection.cursor() as writing, transaction.atomic():
        writing.execute(
            "SET LOCAL streams.maintenance = on; DELETE FROM streams_cacheinvalidation WHERE stream_id = %s",
            [numbers[0]],
        )
        writing.execute(
            "INSERT INTO streams_lowwatermark (stream, position, writers, rows_deleted, trimmed_at) "
            "VALUES ('caches', %s, jsonb_build_object('master', %s), 1, now())",
            [numbers[0], numbers[0]],
        )
    with pytest.raises(ResyncNeeded, match=f"up to {numbers[0]} were trimmed"):
        source.next(cursor)


def test_policies_that_hide_facts_from_the_role_of_a_reader_are_an_error(source, cursor, monkeypatch):
    """It passed over them, and all was well: health asks with the role of its own process."""
    append(1)
    with connection.cursor() as owner:
        owner.execute(
            "CREATE ROLE tenant IN ROLE pg_read_all_data; ALTER TABLE streams_cacheinvalidation ENABLE ROW LEVEL SECURITY"
        )
    monkeypatch.setitem(
        connection.settings_dict, "OPTIONS", {**connection.settings_dict["OPTIONS"], "assume_role": "tenant"}
    )
    source.close()
    try:
        with pytest.raises(driver.DatabaseError, match="row-level security policy"):
            source.next(cursor)
        with (
            closing(connect(driver.dsn(), "test")) as spark,
            spark.cursor() as executor,
            pytest.raises(psycopg2.Error, match="row-level security policy"),
        ):
            executor.execute("SELECT FROM streams_cacheinvalidation")
    finally:
        monkeypatch.undo()
        with connection.cursor() as owner:
            owner.execute("ALTER TABLE streams_cacheinvalidation DISABLE ROW LEVEL SECURITY; DROP ROLE tenant")
