"""Finds out whether the caller's transaction keeps one snapshot. Such a transaction does not see later commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
