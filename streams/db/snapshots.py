"""Finds out whether a transaction keeps one snapshot, and begins others. Such a transaction does not see later commits."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from streams.db import driver, testcase

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

#: Connections of the driver whose transactions are at READ COMMITTED unless they set another level.
_read_committed_by_default: weakref.WeakSet[Any] = weakref.WeakSet()


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


def begins_transaction(using: str) -> bool:
    connection = connections[using]
    return not connection.in_atomic_block and connection.get_autocommit()


@contextmanager
def seeing_commits(using: str, *, savepoint: bool = True) -> Iterator[bool]:
    """Runs the block in ``transaction.atomic``. A new transaction is at READ COMMITTED, whatever the role's default is.

    So what is read after a lock has what the lock's last holder committed. Yields true if the transaction is a new one.
    """
    connection: Any = connections[using]
    is_new = begins_transaction(using)
    with transaction.atomic(using=using, savepoint=savepoint):
        if is_new and connection.connection not in _read_committed_by_default:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                cursor.execute("SELECT current_setting('default_transaction_isolation') = 'read committed'")
                if cursor.fetchone()[0] and connection.isolation_level not in driver.SNAPSHOT_LEVELS:
                    _read_committed_by_default.add(connection.connection)
        yield is_new
