"""Lets many Spark tasks read one snapshot of the database. The driver shares the snapshot, and tasks open it.

Needs no Django.

The snapshot exists as long as the session that shares it stays in its transaction. Until then, PostgreSQL cannot remove
row versions that other transactions have deleted. So the block of ``shared_snapshot`` should end as soon as all rows
are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg2

from pipeline.connections import connect, connect_arrow
from pipeline.errors import SnapshotEnded
from streams.db.long_transactions import NO_LIMITS

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SHARE_SNAPSHOT", "few_rows_in_snapshot", "in_snapshot", "read_batches", "shared_snapshot"]

SHARE_SNAPSHOT = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {NO_LIMITS}; SELECT pg_export_snapshot()"
"""Begins a transaction in a session in autocommit mode, and shares its snapshot. The last result is the snapshot's name."""
_BATCH_BYTES = 4 * 1024 * 1024


@contextmanager
def shared_snapshot(dsn: str, application_name: str) -> Iterator[tuple[Any, str]]:
    """Yields (connection in a snapshot, name of the snapshot). Tasks may open the snapshot within the block.

    Raises ``UnusableArguments`` for a malformed connection string, and errors of the database driver.
    """
    with closing(connect(dsn, application_name)) as connection:
        # With psycopg2 the transaction begins by itself, at the first statement.
        connection.set_session("REPEATABLE READ", readonly=True)
        with connection.cursor() as cursor:
            cursor.execute(NO_LIMITS)
            cursor.execute("SELECT pg_export_snapshot()")
            (name,) = cursor.fetchone()
        yield connection, name


@contextmanager
def few_rows_in_snapshot(dsn: str, snapshot: str, application_name: str) -> Iterator[Any]:
    """Opens a shared snapshot like ``in_snapshot``. But the cursor takes parameters, and rows become Python objects."""
    with closing(connect(dsn, application_name)) as connection, connection.cursor() as cursor:
        connection.set_session("REPEATABLE READ", readonly=True)
        try:
            cursor.execute("SET TRANSACTION SNAPSHOT %s", [snapshot])
        except psycopg2.Error as error:
            raise _ended(snapshot, error) from None
        cursor.execute(NO_LIMITS)
        yield cursor


def _ended(snapshot: str, error: Exception) -> SnapshotEnded:
    return SnapshotEnded(f"The snapshot {snapshot} cannot be read; the session that shared it has ended: {error}")


@contextmanager
def in_snapshot(dsn: str, snapshot: str, application_name: str) -> Iterator[Any]:
    """Opens a connection in a shared snapshot, and yields its cursor. Raises an error if the snapshot has ended.

    Use one cursor for several queries, because to open a connection takes as long as to read some thousand rows.
    """
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - slow to import

    with closing(connect_arrow(dsn, application_name)) as connection, connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        except dbapi.Error as error:
            raise _ended(snapshot, error) from None
        cursor.execute(NO_LIMITS)
        cursor.fetchall()
        yield cursor


def read_batches(cursor: Any, query: str) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a query as Arrow batches of some megabytes. ``cursor`` must come from ``in_snapshot``."""
    cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)})
    cursor.execute(query)
    yield from cursor.fetch_record_batch()
