"""Finds out whether a transaction keeps one snapshot, and begins others. Such a transaction does not see later commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import connections, transaction

from streams.db import testcase

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def keeps_snapshot(connection: BaseDatabaseWrapper) -> bool:
    """Returns true within a transaction that is not at READ COMMITTED, or that failed.

    Asks the server, because Django's options, a statement, the role or the database may have set the isolation level.
    Outside of a transaction, and in the transaction of a ``TestCase``, returns false without a query.
    """
    if (not connection.in_atomic_block and connection.get_autocommit()) or testcase.is_in_test(connection):
        return False
    if connection.needs_rollback:  # no query runs in it
        return True
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('transaction_isolation') <> 'read committed'")
        return bool(cursor.fetchone()[0])


@contextmanager
def seeing_commits(using: str) -> Iterator[None]:
    """Runs the block in ``transaction.atomic``. A new transaction is at READ COMMITTED, whatever the role's default is.

    So what is read after a lock has what the lock's last holder committed.
    """
    connection = connections[using]
    is_new = not connection.in_atomic_block and connection.get_autocommit()
    with transaction.atomic(using=using):
        if is_new:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        yield
