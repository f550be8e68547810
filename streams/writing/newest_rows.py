"""Keeps the newest row of each key: deletes older rows of the same key, in the transaction that inserts facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streams.core.declaration import NEWEST_PER_KINDS, ColumnKind, quoted
from streams.writing.key_locks import lock_exclusively

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from streams.core.bound import BoundStream
    from streams.core.declaration import FactTable
    from streams.facts import Fact

#: Number of lock rows for one table.
_LOCKS = 64


def keep_newest(stream: BoundStream, connection: BaseDatabaseWrapper, facts: Sequence[Fact]) -> None:
    """Deletes the older rows of the keys of these facts. Must be called in the transaction that has just inserted them."""
    for table in stream.declaration.tables:
        found = [fact for fact in facts if fact._meta.db_table == table.name]
        if table.newest_per and found:
            compact_by_key(connection, table, found)


def compact_by_key(connection: BaseDatabaseWrapper, table: FactTable, facts: Sequence[Fact]) -> None:
    """Deletes all but the newest row of each key that occurs in these facts. The key is the column ``newest_per``.

    Must be called in the transaction that inserted the facts.
    """
    field = next(field for field in facts[0]._meta.concrete_fields if field.column == table.newest_per)
    found = {field.get_prep_value(getattr(fact, field.attname)) for fact in facts}
    values = sorted(str(value) for value in found if value is not None)
    with connection.cursor() as cursor:
        compact_keys(cursor, table, values)


def compact_keys(cursor: Any, table: FactTable, values: Sequence[str]) -> None:
    """Deletes all but the newest row of each of these keys.

    Must be called in the transaction that inserted rows with these keys. In this way a table can hold, for instance,
    the present state of each user, although no row is ever updated. If the transaction keeps one snapshot (REPEATABLE
    READ), an older row may stay. The next call for the same key deletes this row.
    """
    # A and B insert a row for the same key. Without the lock neither sees the other's row, and both rows stay. With the lock B
    # waits between its insert and its delete until A has committed. Then B sees A's row.
    for statement in lock_exclusively(table.name, _LOCKS, values):
        cursor.execute(statement.text, statement.values)
    kind = next((column.kind for column in table.stored if column.name == table.newest_per), ColumnKind.TEXT)
    cursor.execute(
        f"""
        DELETE FROM {quoted(table.name)} AS old USING (
            SELECT {quoted(table.newest_per)} AS value, max({quoted(table.id_column)}) AS id FROM {quoted(table.name)}
            WHERE {quoted(table.newest_per)} = ANY(%(values)s::text[]::{NEWEST_PER_KINDS[kind]}[]) GROUP BY 1
        ) AS newest
        WHERE old.{quoted(table.newest_per)} = newest.value AND old.{quoted(table.id_column)} < newest.id
        """,
        {"values": list(values)},
    )
