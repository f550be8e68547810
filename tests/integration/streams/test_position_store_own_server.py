"""Stored positions through crashes: what was announced survives, whatever the writers chose, and a standby may read it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import psycopg2
import pytest

from streams.core.tokens import VectorToken
from streams.follow.stored_cursors import CursorMoved, Owner, move_cursor
from streams.reading.position_store import SESSION, PositionStore
from streams.reading.possible_positions import seen_positions_and_sequence
from streams.reading.rows import linear_position, stored_positions
from tests.support.held_server import Own, held_server
from tests.support.held_tables import ORDERS, Session
from tests.support.positions_table import POSITIONS
from tests.support.waiting import wait_until
from tests.torture.holds.run import PGBOUNCER, Pooler
from tests.torture.own_postgres import OwnPostgres


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    with held_server(tmp_path_factory.mktemp("positions")) as server:
        yield server


@pytest.fixture
def own(started: OwnPostgres) -> Iterator[Own]:
    with ExitStack() as stack:
        made = Own(started, stack)
        made.install()(POSITIONS)
        yield made


def position(session: Session) -> int:
    return linear_position(stored_positions(session.cursor, ["orders"]).get("orders", {}).values())


def texts_upto(session: Session, upto: int) -> list[str]:
    return [row[0] for row in session("SELECT text FROM held_order WHERE stream_id <= %s ORDER BY stream_id", upto)]


def test_what_was_stored_survives_a_crash_although_its_writers_did_not_wait(own: Own):
    """They commit without waiting for the disk, and take IDs that they roll back. Both are lost by a crash, if nobody flushes."""
    lost = False
    for number in range(6):
        looking, store = own.session(), PositionStore()
        looking(SESSION)
        writer = own.session()
        writer("SET synchronous_commit = off")
        writer.append(f"early {number}")
        writer("BEGIN")
        writer.append(*["never"] * 40)
        writer("ROLLBACK")
        assert "orders" in store.store(looking.cursor, time.monotonic())
        stored = position(looking)
        texts = texts_upto(looking, stored)
        assert texts[-1] == f"early {number}"
        writer("BEGIN")
        writer.append(*["never"] * 200)
        writer("ROLLBACK")
        writer.append("late")
        seen = looking.seen()
        assert seen.position > stored
        own.crash()
        after = own.session()
        assert position(after) == stored
        assert after.seen().given >= stored
        assert texts_upto(after, stored) == texts
        lost = lost or after.seen().given < seen.position
        (next_id,) = after.append(f"next {number}")
        assert next_id > stored
    assert lost, "no crash lost anything, so this test shows nothing"


def test_a_session_that_may_commit_without_waiting_is_made_to_wait(own: Own):
    looking = own.session()
    looking("SET synchronous_commit = off")
    looking(SESSION)
    assert looking.one("SHOW synchronous_commit") == "on"
    looking("SET synchronous_commit = remote_apply")
    looking(SESSION)
    assert looking.one("SHOW synchronous_commit") == "remote_apply"


def test_a_standby_reads_the_row_and_does_not_look(own: Own):
    looking = own.session()
    looking(SESSION)
    looking.append("a", "b")
    PositionStore().store(looking.cursor, time.monotonic())
    stored = position(looking)
    signal = own.server.folder / "data" / "postgres" / "data" / "standby.signal"
    signal.touch()
    try:
        own.crash()
        reader = own.session()
        assert reader.one("SELECT pg_is_in_recovery()")
        seen, _ = seen_positions_and_sequence(reader.cursor, ORDERS)
        assert {at.position for at in seen.values()} == {position(reader)} == {stored}
        assert texts_upto(reader, stored) == ["a", "b"]
        with pytest.raises(psycopg2.Error, match="needs the primary"):
            PositionStore().store(reader.cursor, time.monotonic())
        reader.close()
    finally:
        signal.unlink()
        own.crash()
    # After the promotion somebody looks again, and goes on where the row is.
    looking = own.session()
    looking(SESSION)
    looking.append("c")
    assert PositionStore().store(looking.cursor, time.monotonic()) == ["orders"]
    assert position(looking) > stored
    assert texts_upto(looking, position(looking)) == ["a", "b", "c"]


def test_a_prepared_append_is_not_passed_by_a_looker_after_a_crash(own: Own):
    writer = own.session()
    writer("BEGIN")
    writer.append("prepared")
    writer("PREPARE TRANSACTION 'later'")
    writer.append("next")
    own.crash()
    looking, store = own.session(), PositionStore()
    looking(SESSION)
    store.store(looking.cursor, time.monotonic())
    assert position(looking) <= 1
    looking("COMMIT PREPARED 'later'")
    store.store(looking.cursor, time.monotonic())
    assert texts_upto(looking, position(looking)) == ["prepared", "next"]


CURSORS = """
CREATE TABLE streams_storedcursor (
    reader text, stream text, base bigint, entries jsonb DEFAULT '{}', epoch text, lease bigint DEFAULT 1, error text,
    facts_handled bigint DEFAULT 0, facts_parked bigint DEFAULT 0, moved_at timestamptz, seen_at timestamptz);
INSERT INTO streams_storedcursor (reader, stream, base) VALUES ('r', 'orders', 1)
"""


@pytest.mark.skipif(PGBOUNCER is None, reason="no pgbouncer here: Debian's package pgbouncer")
def test_no_cursor_moves_through_a_pooler_to_what_a_crash_took_back(own: Own):
    """The pooler gives the handler's connection another session, as if nothing had happened. Whether the crash took IDs back
    depends on what was flushed by then.
    """
    own.session()(CURSORS)
    source, writer, key = own.session(), own.session(), 4711
    assert source.one("SELECT pg_try_advisory_lock(%s)", key)
    with closing(Pooler(str(PGBOUNCER), own.server)) as pooler, ExitStack() as stack:

        def through_pooler() -> Any:
            with suppress(psycopg2.OperationalError):  # it has just been started
                return stack.enter_context(closing(psycopg2.connect(**pooler.parameters())))
            return None

        handling = wait_until(through_pooler)
        cursor = handling.cursor()
        way = VectorToken(1), VectorToken(1)
        move_cursor(cursor, Owner("r", 1, "host", 1), "orders", way, hold=(key, ""))
        handling.commit()
        writer("BEGIN")
        writer.append(*["never"] * 100)
        writer("ROLLBACK")
        seen = source.seen()
        own.crash()
        after = own.session()
        with pytest.raises(CursorMoved):
            move_cursor(
                cursor, Owner("r", 1, "host", 1), "orders", (way[1], VectorToken(seen.position)), hold=(key, "")
            )
        handling.rollback()
        assert after.one("SELECT base FROM streams_storedcursor") == 1
