"""Locks on keys of facts: rows of ``streams_keylock``, which a transaction locks until its end.

Rows are locked, and no advisory locks are used. Every role that may connect can hold an advisory lock, and appends
would have to wait for this role. A hash assigns each key to a row, so that very many keys need only few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from streams.db import driver

if TYPE_CHECKING:
    from streams.core.bound import BoundStream

#: Number of rows for the keys of one stream.
ROWS_OF_STREAM = 1024

#: Names of the rows of some keys. ``%s``, in order: the prefix of the names, the number of rows with this prefix, the keys.
_NAMES = "SELECT DISTINCT %s || ':' || (hashtextextended(value, 0) & (%s - 1)) AS name FROM unnest(%s::text[]) AS value"
#: Locks the rows, and inserts those that are missing. ``WHERE false``: a row that is there is locked and not updated. Sorted, so
#: that two transactions lock the same rows in the same order and cannot deadlock.
_EXCLUSIVELY = f"""
INSERT INTO streams_keylock (name) {_NAMES} ORDER BY name
ON CONFLICT (name) DO UPDATE SET name = excluded.name WHERE false
"""
#: Inserts the rows that are missing. If another transaction inserts one of them, the statement waits for this transaction.
_INSERT_MISSING = f"INSERT INTO streams_keylock (name) {_NAMES} ORDER BY name ON CONFLICT DO NOTHING"
_SHARED = f"""
SELECT count(*) FROM (
    SELECT FROM streams_keylock WHERE name = ANY(ARRAY({_NAMES})) ORDER BY name FOR KEY SHARE
) AS locked
"""
_MISSING = (
    "SELECT count(*) < %s FROM streams_keylock WHERE name = ANY(ARRAY(SELECT %s || ':' || generate_series(0, %s - 1)))"
)
_CREATE = """
INSERT INTO streams_keylock (name) SELECT %s || ':' || n FROM generate_series(0, %s - 1) AS n ON CONFLICT DO NOTHING
"""


def lock_exclusively(prefix: str, rows: int, keys: Sequence[str]) -> list[driver.Statement]:
    """Returns the statement that locks the rows of these keys.

    The statement waits for each transaction that has locked one of these rows.

    ``rows``, a power of two, is the number of rows with this prefix.
    """
    return [driver.Statement(_EXCLUSIVELY, [prefix, rows, list(keys)])]


def lock_shared(prefix: str, rows: int, keys: Sequence[str]) -> list[driver.Statement]:
    """Returns the statements that lock the rows of these keys in shared mode.

    The statements wait only for transactions that lock one of these rows exclusively.
    """
    values = [prefix, rows, list(keys)]
    return [driver.Statement(_INSERT_MISSING, values), driver.Statement(_SHARED, values)]


def key_prefix(stream: BoundStream) -> str:
    return f"key:{stream.name}"


def rows_are_missing(cursor: Any, stream: BoundStream) -> bool:
    """Returns true if the stream has a key, and not all the lock rows for its keys are there."""
    if not stream.declaration.key:
        return False
    cursor.execute(_MISSING, [ROWS_OF_STREAM, key_prefix(stream), ROWS_OF_STREAM])
    return bool(cursor.fetchone()[0])


def create_rows(cursor: Any, stream: BoundStream) -> None:
    """Inserts the lock rows for the keys of a stream that are missing.

    Must be called before the keys are locked: a transaction that inserts a missing row holds this row exclusively. Two
    transactions that each insert the row that the other locks next would deadlock. If another transaction is inserting
    the rows now, this function returns without an error.
    """
    with suppress(driver.lock_timed_out), driver.in_transaction(cursor):
        cursor.execute("SET LOCAL lock_timeout = 10")
        cursor.execute(_CREATE, [key_prefix(stream), ROWS_OF_STREAM])
