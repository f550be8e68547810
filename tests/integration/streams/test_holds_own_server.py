"""Holds through what needs a server of its own: prepared transactions, crashes, a standby, a subscription."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg2
import pytest

from streams.holds.look import Seen, holders
from streams.holds.weaknesses import weaknesses
from tests.support.held_server import Own, held_server
from tests.support.waiting import wait_until
from tests.torture.own_postgres import OwnPostgres


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    with held_server(tmp_path_factory.mktemp("holds")) as server:
        yield server


@pytest.fixture
def own(started: OwnPostgres) -> Iterator[Own]:
    with ExitStack() as stack:
        yield Own(started, stack)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_prepared_append_holds_until_somebody_ends_it(own: Own, end: str):
    writer = own.install()
    writer("BEGIN")
    assert writer.append("prepared") == [2]
    writer("PREPARE TRANSACTION 'later'")
    writer.append("next")
    writer.close()
    reader = own.session()
    assert reader.seen() == Seen(given=3, position=1, open={0: 1})
    (holder,) = holders(reader.cursor, ["orders"])
    assert (holder.pid, holder.prepared, holder.bound, holder.role) == (None, "later", 1, "postgres")
    assert holder.since is not None
    own.crash()
    reader = own.session()
    seen = reader.seen()  # the sequence may be ahead by what it had logged
    assert (seen.position, seen.open) == (1, {0: 1})
    assert [one.prepared for one in holders(reader.cursor)] == ["later"]
    reader(f"{end} PREPARED 'later'")
    assert reader.seen().position == reader.seen().given >= 3
    texts = {text for (text,) in reader("SELECT text FROM held_order")}
    assert texts == ({"prepared", "next"} if end == "COMMIT" else {"next"})


def test_a_crash_leaves_no_hold_and_gives_out_no_id_twice(own: Own):
    writer = own.install()
    writer.append("flushed")
    other = own.session()
    other("BEGIN")
    other.append("never")
    own.crash()
    reader = own.session()
    seen = reader.seen()
    assert seen.position == seen.given >= 2
    (number,) = reader.append("after")
    assert number == seen.given + 1
    assert [row[0] for row in reader("SELECT text FROM held_order ORDER BY stream_id")] == ["flushed", "after"]


def test_a_standby_refuses_a_look(own: Own):
    own.install().append("x")
    cluster = own.server.folder / "data" / "postgres" / "data"
    signal = cluster / "standby.signal"
    signal.touch()
    try:
        own.crash()
        reader = own.session()
        assert reader.one("SELECT pg_is_in_recovery()")
        with pytest.raises(psycopg2.Error, match="needs the primary") as raised:
            reader.seen()
        assert "stored positions" in str(raised.value)
        reader.close()
    finally:
        signal.unlink()
        own.crash()
    assert own.session().seen().position == own.session().seen().given


def test_a_subscription_applies_what_its_publisher_appended_and_changed(own: Own):
    source = own.install()
    source.append("before")
    source("INSERT INTO held_part (kind) VALUES ('a')")
    source("CREATE PUBLICATION facts FOR TABLE held_order, held_part")
    source("CREATE DATABASE target")
    try:
        target = own.install("target")
        source("SELECT pg_create_logical_replication_slot('facts', 'pgoutput')")
        where: dict[str, Any] = own.server.parameters()
        dsn = f"host={where['host']} port={where['port']} user={where['user']} password={where['password']} dbname=postgres"
        target(f"CREATE SUBSCRIPTION facts CONNECTION '{dsn}' PUBLICATION facts "
               "WITH (create_slot = false, slot_name = 'facts')")  # fmt: skip
        wait_until(
            lambda: target.one("SELECT count(*) FROM held_order") == target.one("SELECT count(*) FROM held_part") == 1
        )
        source.append("first", "second")
        source("INSERT INTO held_part (kind) VALUES ('a')")
        source("BEGIN; SET LOCAL streams.maintenance = on; UPDATE held_order SET text = 'changed' WHERE stream_id = 3; "
               "DELETE FROM held_order WHERE stream_id = 4; COMMIT")  # fmt: skip
        wait_until(lambda: sorted(target("SELECT stream_id, text FROM held_order")) == [(2, "before"), (3, "changed")])
        wait_until(lambda: target.one("SELECT count(*) FROM held_part") == 2)
        with pytest.raises(psycopg2.errors.RestrictViolation):
            target("DELETE FROM held_order")
        weak = [one for one in weaknesses(target.cursor) if one.loses]
        assert {one.stream for one in weak} == {"orders", "parts"}
        assert all("by subscription facts, in the order of their commits" in one.problem for one in weak)
        target("ALTER SUBSCRIPTION facts DISABLE")
        assert [one for one in weaknesses(target.cursor) if one.loses] == []
        wait_until(lambda: not source.one("SELECT active FROM pg_replication_slots WHERE slot_name = 'facts'"))
        target("ALTER SUBSCRIPTION facts SET (slot_name = NONE)")
        target("DROP SUBSCRIPTION facts")
        target.close()
        source("SELECT pg_drop_replication_slot('facts')")
    finally:
        source("DROP DATABASE IF EXISTS target WITH (FORCE)")
        source("DROP PUBLICATION facts")
