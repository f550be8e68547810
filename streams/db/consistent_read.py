"""Several queries that see one state of the database.

``now`` of a stream that a reader is to read up to is taken *before* the view begins: a position is known after the commits
that it covers, so the view then holds all of them. Taken inside it could cover a commit that the view does not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

from streams.db.long_transactions import NO_LIMITS

__all__ = ["long_transaction", "one_view"]


@contextmanager
def one_view(using: str, *, is_long: bool = False) -> Iterator[Any]:
    """A cursor that sees one state of the database in all its queries, and can change nothing.

    Within the caller's transaction that one's view has to do. ``is_long``: the caller works between its queries, for as long as
    that takes (``long_transactions``).
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
    """A cursor in a transaction of a job, which works between its statements (``long_transactions``)."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(NO_LIMITS)
        yield cursor
