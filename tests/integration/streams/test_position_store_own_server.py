"""Stored positions through crashes: what was announced survives, whatever the writers chose, and a standby may read it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg2
import pytest

from streams.reading.position_store import SESSION, PositionStore
from streams.reading.possible_positions import seen_positions_and_sequence
from streams.reading.rows import linear_position, stored_positions
from tests.support.held_server import Own, held_server
from tests.support.held_tables import ORDERS, Session
from tests.support.positions_table import POSITIONS
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
