"""Transactions in which several queries see one snapshot of the database, and transactions of long jobs.

If the caller wants to read up to a position, it must fetch the position *before* the snapshot begins. A position is stored
after the commits that it covers, so a later snapshot contains all of them. A position that is fetched later, from
another connection, could cover a commit that the snapshot does not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, connections, transaction

from streams.core.sequences import locked_tables
from streams.db import driver
from streams.db.long_transactions import NO_LIMITS
from streams.db.snapshots import seeing_commits

#: Longest wait for a lock on a table. Who asks must learn who keeps it, and not wait as long as it is kept.
LOCK_SECONDS = 0.5
_LIMIT_WAITS = f"SET LOCAL lock_timeout = {int(LOCK_SECONDS * 1000)}"


@contextmanager
def read_only_snapshot(using: str, *, is_long: bool = False, limits_waits: bool = False) -> Iterator[Any]:
    """Yields a cursor whose queries all see one snapshot, and which cannot change anything.

    If the caller has a transaction open, yields a cursor of that transaction, whatever isolation level this transaction
    has. If ``is_long`` is true, the server's time limits are lifted, because the caller does other work between its
    queries (``long_transactions``). If ``limits_waits`` is true, a query fails that waits for a lock for ``LOCK_SECONDS``.
    """
    connection = connections[using]
    if connection.in_atomic_block:
        with connection.cursor() as cursor:
            yield cursor
        return
    with transaction.atomic(using=using), connection.cursor() as cursor:
        limit = f"; {_LIMIT_WAITS}" if limits_waits else ""
        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY{limit}")
        if is_long:
            cursor.execute(NO_LIMITS)
        yield cursor


def limit_waits(cursor: Any) -> None:
    """Makes all further queries of the transaction fail that wait for a lock for ``LOCK_SECONDS``."""
    cursor.execute(_LIMIT_WAITS)


@contextmanager
def lockers_named(using: str) -> Iterator[None]:
    """Names who keeps tables locked in the error of a query that waited for a lock. Around the transaction."""
    try:
        yield
    except OperationalError as error:
        if not isinstance(error.__cause__, driver.lock_timed_out) or connections[using].in_atomic_block:
            raise
        with connections[using].cursor() as cursor:
            locked = "; ".join(f"{table} is locked by {who}" for table, who in locked_tables(cursor).items())
        if not locked:  # not any more
            raise
        raise OperationalError(f"table {locked}: end that transaction") from error.__cause__


@contextmanager
def long_transaction(using: str) -> Iterator[Any]:
    """Yields a cursor in a transaction without the server's time limits, for jobs (``long_transactions``).

    Uses the caller's transaction if one is open (``seeing_commits``).
    """
    with seeing_commits(using), connections[using].cursor() as cursor:
        cursor.execute(NO_LIMITS)
        yield cursor
