"""Transactions in which several queries see one snapshot of the database, and transactions of long jobs.

If the caller wants to read up to a position, it must fetch the position *before* the snapshot begins. A position is stored
after the commits that it covers, so a later snapshot contains all of them. A position that is fetched later, from
another connection, could cover a commit that the snapshot does not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

from streams.db.long_transactions import NO_LIMITS


@contextmanager
def read_only_snapshot(using: str, *, is_long: bool = False) -> Iterator[Any]:
    """Yields a cursor whose queries all see one snapshot, and which cannot change anything.

    If the caller has a transaction open, yields a cursor of that transaction, whatever isolation level this transaction
    has. If ``is_long`` is true, the server's time limits are lifted, because the caller does other work between its
    queries (``long_transactions``).
    """
    connection = connections[using]
    if connection.in_atomic_block:
        with connection.cursor() as cursor:
            yield cursor
        return
    with transaction.atomic(using=using), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if is_long:
            cursor.execute(NO_LIMITS)
        yield cursor


@contextmanager
def long_transaction(using: str) -> Iterator[Any]:
    """Yields a cursor in a transaction without the server's time limits, for jobs (``long_transactions``).

    Uses the caller's transaction if one is open. A new transaction is at READ COMMITTED, whatever the role's default
    is.
    """
    connection = connections[using]
    is_own = not connection.in_atomic_block and connection.get_autocommit()
    with transaction.atomic(using=using), connection.cursor() as cursor:
        if is_own:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(NO_LIMITS)
        yield cursor
