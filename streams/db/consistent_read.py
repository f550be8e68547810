"""Several queries that see one snapshot of the database.

A position up to which the caller wants to read is taken *before* the snapshot. A position is stored after the commits
that it covers, so a later snapshot contains all of them. A position taken inside could cover a commit that the snapshot
does not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

from streams.db.long_transactions import NO_LIMITS

__all__ = ["long_transaction", "read_only_snapshot"]


@contextmanager
def read_only_snapshot(using: str, *, is_long: bool = False) -> Iterator[Any]:
    """Yields a cursor whose queries all see one snapshot, and which cannot change anything.

    Within a transaction of the caller's it yields a cursor of that transaction, with the isolation that this has.
    ``is_long``: the caller does other work between its queries, for as long as that takes (``long_transactions``).
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
    """Yields a cursor in a transaction of a job, which does other work between its statements (``long_transactions``)."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(NO_LIMITS)
        yield cursor
