"""A server of a test's own with tables whose appends are held, which the test may crash."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg2

from streams.holds.installed_sql import FUNCTIONS
from tests.support.held_tables import Session
from tests.support.waiting import wait_until
from tests.torture.own_postgres import OwnPostgres

__all__ = ["Own", "held_server"]

TABLE = """
CREATE SEQUENCE orders_stream_seq START 2;
CREATE TABLE held_order (stream_id bigint PRIMARY KEY, instance_name text NOT NULL, text text);
SELECT streams_hold_table('held_order', 'orders', 'orders_stream_seq');
CREATE SEQUENCE held_part_seq START 2;
CREATE TABLE held_part (stream_id bigint, instance_name text, kind text) PARTITION BY LIST (kind);
CREATE TABLE held_part_a PARTITION OF held_part FOR VALUES IN ('a');
ALTER TABLE held_part_a REPLICA IDENTITY FULL;
SELECT streams_hold_table('held_part', 'parts', 'held_part_seq')
"""


class Own:
    """The server, and sessions on it."""

    def __init__(self, server: OwnPostgres, stack: ExitStack) -> None:
        self.server, self._stack = server, stack

    def session(self, database: str = "postgres") -> Session:
        own = psycopg2.connect(**{**self.server.parameters(), "dbname": database})
        own.autocommit = True
        return Session(self._stack.enter_context(closing(own)))

    def crash(self) -> None:
        self.server.kill_postmaster()
        wait_until(self.server.is_up)

    def install(self, database: str = "postgres") -> Session:
        """A session in a database whose only tables are those of the test."""
        own = self.session(database)
        own("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        own(FUNCTIONS)
        own(TABLE)
        return own


@contextmanager
def held_server(folder: Path) -> Iterator[OwnPostgres]:
    """A server that takes prepared transactions, and can be published from."""
    with closing(OwnPostgres(folder)) as server:
        with server.cursor() as cursor:
            cursor.execute("ALTER SYSTEM SET max_prepared_transactions = 5")
            cursor.execute("ALTER SYSTEM SET wal_level = logical")
        server.kill_postmaster()
        wait_until(server.is_up)
        yield server
