"""Emptying the tables after a test that commits: those that hold something, in one statement.

Django's own way empties every table and then makes all content types and permissions anew, which takes longer than most tests.
Here these stay as the migrations left them; no test changes them. Sequences stay where they are, but for those that a test moved
far ahead, which would change what others see.

TRUNCATE makes new files for a table and each of its indexes, and every session then reads anew what it knew of them. So rows of
small tables are deleted instead.

A test of a query's plan uses the fixture ``new_tables``, or calls ``empty_tables`` itself. A table that was written has pages,
and one that PostgreSQL analyzed while it was empty counts as empty for ever: in both another plan than that of a new table may
cost as little. Autovacuum leaves all tables of the test database alone, so no plan changes by itself.
"""

from __future__ import annotations

from contextlib import closing
from functools import cache

from django.db import connection

__all__ = ["delete_rows", "empty_tables", "leave_tables_alone"]

_SMALL_BYTES = 65_536
_KEPT = ("django_content_type", "auth_permission")
#: A table that was emptied and not written since has no pages; one of which all rows were rolled back has. ``reltuples`` is -1
#: for a table that was never vacuumed or analyzed, and TRUNCATE makes it so.
#: The lock of a small table waits for transactions that write it, as TRUNCATE does: their rows are deleted too. Triggers and
#: foreign keys are asked nothing.
_EMPTY = """
DO $$
DECLARE
    large text;
    small text;
    deletes text;
BEGIN
    SET LOCAL streams.maintenance = on;
    SELECT string_agg(name, ', ') FILTER (WHERE is_truncated), string_agg(name, ', ') FILTER (WHERE NOT is_truncated),
        string_agg('DELETE FROM ' || name, '; ') FILTER (WHERE NOT is_truncated)
    INTO large, small, deletes
    FROM (
        SELECT quote_ident(relname) AS name, pg_relation_size(oid) > 0 AS has_pages,
            reltuples >= 0 OR pg_relation_size(oid) > {most} AS is_truncated
        FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relname = ANY (ARRAY[{names}])
    ) AS sized WHERE has_pages OR is_truncated;
    IF large IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || large || ' CASCADE';
    END IF;
    IF small IS NOT NULL THEN
        EXECUTE 'LOCK TABLE ' || small || ' IN SHARE ROW EXCLUSIVE MODE';
        SET LOCAL session_replication_role = replica;
        EXECUTE deletes;
    END IF;
    PERFORM setval(quote_ident(schemaname) || '.' || quote_ident(sequencename), 1) FROM pg_sequences
    WHERE last_value > 500000 AND sequencename LIKE '%seq';
END $$
"""
_LEAVE_ALONE = """
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' LOOP
        EXECUTE 'ALTER TABLE ' || name || ' SET (autovacuum_enabled = false)';
    END LOOP;
END $$
"""


def empty_tables() -> None:
    """Leave the test database as it was made: no table has a page, nor a count of its rows."""
    _run(0)


def delete_rows() -> None:
    """Leave no row. Tables that were small keep their pages, unless a test had them analyzed.

    Functions of triggers keep their plans for as long as their session lives. A plan made for a table that counts as empty would
    read the whole table for each of the many rows that a later test inserts.
    """
    _run(_SMALL_BYTES)


def leave_tables_alone() -> None:
    """Tell autovacuum to pass by all tables that there are."""
    with connection.cursor() as cursor:
        cursor.execute(_LEAVE_ALONE)


def _run(most: int) -> None:
    statement = _EMPTY.format(names=_names(), most=most)
    if not connection.in_atomic_block:
        with connection.cursor() as cursor:
            cursor.execute(statement)
        return
    # A test that is rolled back has begun. Its own transaction would keep the locks to its end: a writer that it starts would
    # wait for them on a connection of its own, and the test for the writer.
    with closing(connection.copy()) as other, other.cursor() as cursor:
        cursor.execute("SET lock_timeout = '30s'")  # a fixture that writes came first
        cursor.execute(statement)


@cache
def _names() -> str:
    names = sorted(set(connection.introspection.django_table_names()) - set(_KEPT))
    return ", ".join("'" + name.replace("'", "''") + "'" for name in names)


def forget_tables() -> None:
    """Look at the database anew before the next emptying: a test made a table, or dropped it."""
    _names.cache_clear()
