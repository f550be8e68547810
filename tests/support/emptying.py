"""Emptying the tables after a test that commits: those that hold something, in one statement.

Django's own way empties every table and then makes all content types and permissions anew, which takes longer than most tests.
Here these stay as the migrations left them; no test changes them. Sequences stay where they are, but for those that a test moved
far ahead, which would change what others see.
"""

from __future__ import annotations

from functools import cache

from django.db import connection

__all__ = ["empty_tables"]

_KEPT = ("django_content_type", "auth_permission")
#: A table that was emptied and not written since has no pages; one of which all rows were rolled back has.
_EMPTY = """
DO $$
DECLARE
    written text;
BEGIN
    SELECT string_agg(quote_ident(relname), ', ') INTO written FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relname = ANY (ARRAY[{names}]) AND pg_relation_size(oid) > 0;
    IF written IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || written || ' CASCADE';
    END IF;
    PERFORM setval(quote_ident(schemaname) || '.' || quote_ident(sequencename), 1) FROM pg_sequences
    WHERE last_value > 100000000 AND sequencename LIKE '%seq';
END $$
"""


def empty_tables() -> None:
    """Leave the test database as it was made."""
    with connection.cursor() as cursor:
        cursor.execute(_statement())


@cache
def _statement() -> str:
    names = sorted(set(connection.introspection.django_table_names()) - set(_KEPT))
    return _EMPTY.format(names=", ".join(f"'{name}'" for name in names))


def forget_tables() -> None:
    """Look at the database anew before the next emptying: a test made a table, or dropped it."""
    _statement.cache_clear()
