"""Several queries that see one state of the database.

``now`` of a stream that a reader is to read up to is taken *before* the view begins: a position is known after the commits
that it covers, so the view then holds all of them. Taken inside it could cover a commit that the view does not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

__all__ = ["one_view"]


@contextmanager
def one_view(using: str) -> Iterator[Any]:
    """A cursor that sees one state of the database in all its queries, and can change nothing.

    Within the caller's transaction that one's view has to do.
    """
    connection = connections[using]
    if connection.in_atomic_block:
        with connection.cursor() as cursor:
            yield cursor
        return
    with transaction.atomic(using=using), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield cursor
