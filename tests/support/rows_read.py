"""Counts the rows or pages that PostgreSQL reads for a call: a measure of its cost that is the same on every machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction

_READ = """
SELECT coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0) FROM {}
WHERE relname LIKE 'events\\_%' OR relname LIKE 'state\\_%'
"""


@contextmanager
def large_tables() -> Iterator[None]:
    """Makes the planner choose on this connection, where it can, the plans that it chooses in large tables.

    Small tables would be read whole, because that is cheapest.
    """
    names = ("seqscan", "hashjoin", "mergejoin", "bitmapscan", "material")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE; DISCARD PLANS;" + "; ".join(f"SET enable_{name} = off" for name in names))
        try:
            yield
        finally:
            cursor.execute("; ".join(f"RESET enable_{name}" for name in names))


def rows_read(work: Callable[[], object]) -> int:
    """Returns how many rows of events and state the call reads from tables, in a transaction of its own."""
    with transaction.atomic(), connection.cursor() as cursor:
        before = _count(cursor, "pg_stat_xact_user_tables")
        work()
        return _count(cursor, "pg_stat_xact_user_tables") - before


def rows_read_in_transactions(work: Callable[[], object]) -> int:
    """Does the same for a call that opens transactions of its own: counts what each statement in them reads."""
    counts: list[int] = []

    def counted(execute: Callable[..., Any], sql: str, *given: Any) -> Any:
        if not connection.in_atomic_block or sql.startswith("SET TRANSACTION"):
            return execute(sql, *given)
        with connection.connection.cursor() as cursor:  # not counted itself
            before = _count(cursor, "pg_stat_xact_user_tables")
            result = execute(sql, *given)
            counts.append(_count(cursor, "pg_stat_xact_user_tables") - before)
        return result

    with connection.execute_wrapper(counted):
        work()
    return sum(counts)


def pages_read(work: Callable[[], object]) -> int:
    """Returns how many pages of tables and indexes the queries of a call read, cached ones included.

    A row that a condition rejects inside an index counts as no row, but its page is read. Each query runs twice.
    """
    counts: list[int] = []

    def explained(execute: Callable[..., Any], sql: str, params: Any, *given: Any) -> Any:
        if sql.lstrip().startswith(("SELECT", "WITH", "EXECUTE")):
            with connection.connection.cursor() as cursor:  # not counted itself
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
                ((answer,),) = cursor.fetchall()
            plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
            counts.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
        return execute(sql, params, *given)

    with connection.execute_wrapper(explained):
        work()
    return sum(counts)


def _count(cursor: Any, view: str) -> int:
    cursor.execute(_READ.format(view))
    return int(cursor.fetchone()[0])
