"""Transactions in which several queries see one snapshot of the database, and transactions of long jobs.

If the caller wants to read up to a position, it must fetch the position *before* the snapshot begins. A position is stored
after the commits that it covers, so a later snapshot contains all of them. A position that is fetched later, from
another connection, could cover a commit that the snapshot does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django.db import OperationalError, connections, transaction

from streams.core.sequences import locked_tables
from streams.db import driver
from streams.db.long_transactions import NO_LIMITS
from streams.db.snapshots import seeing_commits
from streams.runtime.text import one_line

#: Longest wait for a lock on a table. Who asks must learn who keeps it, and not wait as long as it is kept.
LOCK_SECONDS = 0.5
AWAY = "The database cannot be read."


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
def limited_waits(using: str, begin: Callable[[str], AbstractContextManager[Any]] = seeing_commits) -> Iterator[None]:
    """Runs the block in a transaction that ``begin`` begins. A query fails in it that waits for a lock for ``LOCK_SECONDS``.

    The error names who keeps tables of streams locked. A transaction that the caller has open has no such limit.
    """
    connection = connections[using]
    if connection.in_atomic_block:
        yield
        return
    try:
        with begin(using), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = {int(LOCK_SECONDS * 1000)}")
            yield
    except OperationalError as error:
        if not isinstance(error.__cause__, driver.lock_timed_out):
            raise
        with connection.cursor() as cursor:
            locked = "; ".join(f"{table} is locked by {who}" for table, who in locked_tables(cursor).items())
        if not locked:  # not any more
            raise
        raise OperationalError(f"table {locked}: end that transaction") from error.__cause__


def sentence_for(request: Any, error: BaseException) -> str:
    """Returns the sentence with which to answer a request that ended with this error of the database.

    Only staff learns who keeps a table locked. May read the request's user.
    """
    is_locked = isinstance(error.__cause__, driver.lock_timed_out)
    if is_locked and getattr(getattr(request, "user", None), "is_staff", False):
        return f"{AWAY[:-1]}: {one_line(error)}."
    return AWAY


@contextmanager
def long_transaction(using: str) -> Iterator[Any]:
    """Yields a cursor in a transaction without the server's time limits, for jobs (``long_transactions``).

    Uses the caller's transaction if one is open (``seeing_commits``).
    """
    with seeing_commits(using), connections[using].cursor() as cursor:
        cursor.execute(NO_LIMITS)
        yield cursor
