"""Finds columns of keys in which values count as equal that are not the same, such as 'A' and 'a'.

Locks and parts of keys go by the bytes of a value. Two such values would have different ones, although they are one key
to whoever compares them. Two writers could both append after the same fact of a key, and its facts be handled out of order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from streams.core.declaration import quoted

if TYPE_CHECKING:
    from streams.core.bound import BoundStream

_LOOSE = """
SELECT given.stream, c.relname || '.' || a.attname,
       CASE WHEN o.oid IS NULL THEN 'type ' || t.typname ELSE 'collation ' || o.collname END
  FROM unnest(%s::text[], %s::text[], %s::text[]) AS given (stream, facts, field)
  JOIN pg_class c ON c.oid = to_regclass(given.facts) JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = given.field
  CROSS JOIN LATERAL (
    WITH RECURSIVE types (id) AS (
        SELECT a.atttypid UNION SELECT d.typbasetype FROM types JOIN pg_type d ON d.oid = types.id WHERE d.typtype = 'd')
    SELECT b.typname FROM types JOIN pg_type b ON b.oid = types.id WHERE b.typtype <> 'd') AS t -- below its domains
  LEFT JOIN pg_collation o ON o.oid = a.attcollation AND NOT o.collisdeterministic
 WHERE o.oid IS NOT NULL OR t.typname IN ('citext', 'bpchar') ORDER BY 1, 2
"""
FIX = 'Give it type text and a deterministic collation: ALTER TABLE … ALTER … TYPE text COLLATE "default" (and db_collation).'


def loose_columns(cursor: Any, columns: Iterable[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Returns (stream, what is wrong) for those of the columns, given as (stream, table, column), that cannot have keys."""
    streams, tables, names = map(list, zip(*columns, strict=True)) if (columns := list(columns)) else ([], [], [])
    cursor.execute(_LOOSE, [streams, list(map(quoted, tables)), names])
    return [
        (stream, f"{column}, which has its keys, is of {kind}, in which values are equal that are not the same")
        for stream, column, kind in cursor.fetchall()
    ]


def loose_keys(cursor: Any, streams: Iterable[BoundStream]) -> list[tuple[str, str]]:
    """Returns the same for the columns that the streams name as ``key`` or ``newest_per``."""
    columns = []
    for stream in streams:
        columns += [
            (stream.name, table.name, table.newest_per) for table in stream.declaration.tables if table.newest_per
        ]
        if key := stream.declaration.key:
            columns += [(stream.name, m._meta.db_table, m._meta.get_field(key).column) for m in stream.models]
    return loose_columns(cursor, dict.fromkeys(columns))
