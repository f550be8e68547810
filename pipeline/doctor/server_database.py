"""One snapshot of a Synapse server's database, read with limits. Nothing is written. Needs no Django.

Versions of Synapse differ in their tables, and the role may lack rights. So a query that needs a table names it, and is
left out with a sentence if the table or a column is missing, if the role may not read it, or if the query takes too
long. A savepoint before each query keeps the snapshot in these cases.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg2
from psycopg2 import errors

from pipeline.connections import connect
from pipeline.doctor.server_streams import COLUMNS_OF_STREAMS
from pipeline.errors import UnusableSource
from pipeline.frames.sources import synapse_db
from pipeline.frames.sources.parts import Form
from streams.db.long_transactions import NO_LIMITS

__all__ = ["READ", "ServerDatabase", "server_database"]

_OF_ROOMS: Mapping[str, Sequence[str]] = {
    "schema_version": ("version",),
    "schema_compat_version": ("compat_version",),
    "events": ("event_id", "room_id", "type", "sender", "outlier", "stream_ordering", "origin_server_ts"),
    "event_json": ("event_id", "room_id", "json", "internal_metadata"),
    "rooms": ("room_id", "room_version"),
    "rejections": ("event_id", "reason"),
    "event_to_state_groups": ("event_id", "state_group"),
    "state_groups": ("id", "room_id"),
    "state_group_edges": ("state_group", "prev_state_group"),
    "state_groups_state": ("state_group", "room_id", "type", "state_key", "event_id"),
    "current_state_events": ("event_id", "room_id", "type", "state_key", "membership"),
    "event_forward_extremities": ("event_id", "room_id"),
    "local_current_membership": ("room_id", "user_id", "membership"),
    "partial_state_rooms": ("room_id",),
    "ex_outlier_stream": ("event_id",),
    "room_stats_state": ("room_id", "name", "canonical_alias"),
    "room_stats_current": ("room_id", "joined_members"),
    "background_updates": ("update_name",),
    "stream_positions": ("stream_name", "instance_name", "stream_id"),
}
READ: Mapping[str, Sequence[str]] = {
    table: tuple(dict.fromkeys((*_OF_ROOMS.get(table, ()), *COLUMNS_OF_STREAMS.get(table, ()))))
    for table in (*_OF_ROOMS, *COLUMNS_OF_STREAMS)
}
"""Table -> the columns that are read of it. The role needs ``SELECT`` on these, and on the sequences."""
_COLUMNS = """
SELECT c.relname::text, a.attname::text, has_column_privilege(c.oid, a.attnum, 'SELECT')
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relname = ANY (%s) AND c.relkind IN ('r', 'p', 'v') AND pg_table_is_visible(c.oid)
"""
_LOCK_SECONDS, _STATEMENT_SECONDS = 5, 20
_ROWS_PER_FETCH = 2_000


@contextmanager
def server_database(dsn: str, seconds: float) -> Iterator[ServerDatabase]:
    """Opens a snapshot. Its queries together may take ``seconds``, until ``without_limit``.

    Raises ``UnusableSource`` if this is no Synapse database of a known version, and ``UnusableArguments``.
    """
    name = synapse_db.name_of(dsn)
    try:
        with closing(connect(dsn, "replsite doctor")) as connection:
            connection.set_session("REPEATABLE READ", readonly=True)
            shared = _share(connection)
            schema = synapse_db.check_database(connection, Form.POSTGRESQL, name)
            yield ServerDatabase(connection, name, schema, seconds, shared)
    except psycopg2.Error as error:
        raise UnusableSource(f"Cannot read {name}: {str(error).strip()}") from error


def _share(connection: Any) -> str | None:
    # First, because a transaction cannot share its snapshot once it has savepoints.
    with closing(connection.cursor()) as cursor:
        try:
            cursor.execute("SELECT pg_export_snapshot()")
            return str(cursor.fetchone()[0])
        except psycopg2.Error:  # for instance, a standby cannot
            connection.rollback()
            return None


class ServerDatabase:
    """The snapshot. ``left_out`` has a sentence for each query that was left out.

    ``shared`` is the name of the snapshot for other connections, or None if the server cannot share it.
    """

    def __init__(self, connection: Any, name: str, schema: int, seconds: float, shared: str | None) -> None:
        self.name, self.schema, self.shared = name, schema, shared
        self.left_out: list[str] = []
        self._connection = connection
        self._ends: float | None = time.monotonic() + seconds
        self._columns: dict[str, dict[str, bool]] = {}
        with self._cursor() as cursor:
            cursor.execute(NO_LIMITS)  # the transaction may be idle while rooms are computed
            cursor.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
            cursor.execute(_COLUMNS, [list(READ)])
            for table, column, may in cursor.fetchall():
                self._columns.setdefault(table, {})[column] = may

    def without_limit(self) -> None:
        """Lets later queries take any time."""
        self._ends = None
        with self._cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = 0")

    def has(self, table: str) -> bool:
        """Returns true if this version has the table, and the role may read what is read of it."""
        return not self._lacks((table,))

    def exists(self, table: str, column: str) -> bool:
        return column in self._columns.get(table, {})

    def readable(self, table: str, column: str) -> bool:
        return self._columns.get(table, {}).get(column, False)

    def _lacks(self, tables: Sequence[str]) -> str:
        for table in tables:
            found = self._columns.get(table)
            if found is None:
                return f"this database has no table {table}"
            missing = [column for column in READ[table] if column not in found]
            if missing:
                return f"{table} has no column {', '.join(missing)}"
            if not all(found[column] for column in READ[table]):
                return f"the role may not read {table}: GRANT SELECT ({', '.join(READ[table])}) ON {table}"
        return ""

    def rows(
        self, subject: str, tables: Sequence[str], sql: str, values: Sequence[Any] | None = None
    ) -> list[Any] | None:
        """Returns the rows of a query that reads ``tables``. Returns None if it was left out: ``subject`` is then listed."""
        try:
            return list(self._each(subject, tables, sql, values))
        except _LeftOut:
            return None

    def _each(
        self, subject: str, tables: Sequence[str], sql: str, values: Sequence[Any] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        if reason := self._lacks(tables):
            raise self._left(subject, reason)
        limit = self._limit()
        if limit is not None and limit <= 0:
            raise self._left(subject, "there is no time left")
        with self._cursor() as cursor:
            cursor.execute("SAVEPOINT query")
            try:
                if limit is not None:
                    cursor.execute(f"SET LOCAL statement_timeout = {max(int(limit * 1000), 1)}")
                with closing(self._connection.cursor("rows")) as rows:  # a cursor of the server: few rows in memory
                    rows.itersize = _ROWS_PER_FETCH
                    rows.execute(sql, values)
                    yield from rows
            except psycopg2.Error as error:  # the other queries can be run all the same
                if self._connection.closed:
                    raise
                cursor.execute("ROLLBACK TO SAVEPOINT query")
                is_too_slow = isinstance(error, errors.QueryCanceled) and limit is not None
                raise self._left(
                    subject, f"it took more than {limit:.0f} s" if is_too_slow else str(error).partition("\n")[0]
                ) from None
            cursor.execute("RELEASE SAVEPOINT query")

    @property
    def connection(self) -> Any:
        """The connection, in the snapshot."""
        return self._connection

    def _limit(self) -> float | None:
        return None if self._ends is None else min(_STATEMENT_SECONDS, self._ends - time.monotonic())

    def _left(self, subject: str, why: str) -> _LeftOut:
        self.left_out.append(f"{subject}: {why}")
        return _LeftOut(subject)

    def _cursor(self) -> Any:
        return closing(self._connection.cursor())


class _LeftOut(Exception):
    """A query that could not be run."""
