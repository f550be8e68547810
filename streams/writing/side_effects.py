"""Applies the side effects of an insert of facts: deletes older rows of the same key, and invalidates cached values.

Older rows are deleted only in tables that keep the newest row of each key. Cached values are dropped as soon as the
transaction is known to have committed, before its facts are complete. Until then the transaction itself computes these
values on every call (``is_changed_here``), and other connections still get the cached values. If the transaction began
to compute a value before its insert, the result is not stored in the cache (``spoil_begun``).
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models.expressions import BaseExpression

from streams.core.declaration import NEWEST_PER_KINDS, ColumnKind, quoted
from streams.core.invalidation import Invalidation, apply_invalidations, drops_nothing, spoil_begun, stores
from streams.core.named_rows import NamedRow
from streams.core.queries import row_of, selected_sql
from streams.reading import cache_feed
from streams.writing.key_locks import lock_exclusively
from streams.writing.transaction import OpenTransaction

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from streams.core.bound import BoundStream
    from streams.core.cache_store import Key
    from streams.core.declaration import FactTable
    from streams.facts import Fact

__all__ = [
    "apply_side_effects",
    "compact_by_key",
    "compact_keys",
    "has_effects",
    "is_changed_here",
    "is_changed_in_process",
]


@dataclass(frozen=True, slots=True)
class _Pending:
    """An open transaction and the invalidations that are to be applied when it commits."""

    record: OpenTransaction
    drops: frozenset[Invalidation]

    def changes(self, cache: str, key: Key) -> bool:
        """Returns true if the transaction's commit invalidates this key, or the whole cache."""
        return Invalidation(cache, key) in self.drops or Invalidation(cache, None) in self.drops


_pending: weakref.WeakKeyDictionary[BaseDatabaseWrapper, list[_Pending]] = weakref.WeakKeyDictionary()
#: The entries of all connections, by their ``id()``. Several threads change this dictionary, so iterate over a copy.
_all_pending: dict[int, _Pending] = {}


def has_effects(stream: BoundStream, facts: Sequence[Fact]) -> bool:
    """Returns true if ``apply_side_effects`` must be called after these facts are inserted."""
    return stream.keeps_newest or _may_drop_here(stream, facts)


def apply_side_effects(
    stream: BoundStream, connection: BaseDatabaseWrapper, record: OpenTransaction, facts: Sequence[Fact]
) -> None:
    """Applies the side effects of these facts. Must be called in the transaction that has just inserted them."""
    by_table = {table.name: [f for f in facts if f._meta.db_table == table.name] for table in stream.declaration.tables}
    for table in stream.declaration.tables:
        if table.newest_per and by_table[table.name]:
            compact_by_key(connection, table, by_table[table.name])
    if _may_drop_here(stream, facts):
        drops = _drops(stream, connection, by_table)
        _drop_at_end(stream, connection, record, drops, [abs(getattr(f, f.id_field)) for f in facts])


def is_changed_here(connection: BaseDatabaseWrapper, cache: str, key: Key) -> bool:
    """Returns true if the transaction that is open on this connection has invalidated the key of the cache."""
    waiting = _pending.get(connection)
    if not waiting:
        return False
    waiting[:] = _open(waiting)
    return any(pending.changes(cache, key) for pending in waiting)


def is_changed_in_process(cache: str, key: Key) -> bool:
    """Returns true if an open transaction of this process, on any connection, has invalidated the key of the cache.

    For code that cannot know which connection its queries will use: async code runs its transactions in other threads.
    """
    return bool(_all_pending) and any(pending.changes(cache, key) for pending in _open(list(_all_pending.values())))


def _open(waiting: Sequence[_Pending]) -> list[_Pending]:
    """Returns the entries of ``waiting`` whose transaction is still open on its connection."""
    # ``left`` and not ``ended``: it is known at once that a connection has left its transaction. How the transaction ended may
    # be known late or never: A rolls back, and its writer is closed before it has asked the database. If the transaction was
    # committed after all, the cache feed drops the values.
    return [pending for pending in waiting if not pending.record.left]


def _may_drop_here(stream: BoundStream, facts: Sequence[Fact]) -> bool:
    """Returns true if these facts may invalidate values of the cached functions in this process.

    Returns false for most facts of the stream ``events``, because most events do not change the state of a room.
    """
    if not (stores and stream.drops_now()):
        return False
    if stream.drops is not drops_nothing or stream.state_changes is None:
        return True
    tables = {table.name: table for table in stream.declaration.tables}
    may_change = stream.state_changes.may_change
    return any(
        may_change(table.row(_values(table, fact))) for fact in facts if (table := tables.get(fact._meta.db_table))
    )


def _values(table: FactTable, fact: Fact) -> list[Any]:
    """Returns the fact's values for the table's columns, as they are stored.

    JSON values are encoded and decoded, so that they equal what other processes will read.
    """
    fields = {field.column: field for field in fact._meta.concrete_fields}
    values: list[Any] = []
    for column in table.columns:
        field = fields[column.name]
        value = getattr(fact, field.attname)
        if column.kind is ColumnKind.JSON and value is not None and not isinstance(value, BaseExpression):
            value = json.loads(json.dumps(value, cls=getattr(field, "encoder", None)))
        values.append(value)
    return values


def _drops(
    stream: BoundStream, connection: BaseDatabaseWrapper, by_table: Mapping[str, Sequence[Fact]]
) -> frozenset[Invalidation]:
    drops: set[Invalidation] = set()
    rows: list[Sequence[Any]] = []
    for table in stream.declaration.tables:
        if isinstance(table.row, NamedRow):
            rows += _written_rows(connection, table, by_table[table.name])
            continue
        for fact in by_table[table.name]:
            values = _values(table, fact)
            if stream.dropped_caches and any(isinstance(value, BaseExpression) for value in values):
                # Only the database knows the value of an SQL expression, and the key may be one. So drop the whole caches.
                drops |= {Invalidation(cache, None) for cache in stream.dropped_caches}
            else:
                rows.append(table.row(values))
    with connection.cursor() as cursor:
        return frozenset(drops | stream.drops_of(cursor, rows))


def _written_rows(connection: BaseDatabaseWrapper, table: FactTable, facts: Sequence[Fact]) -> list[Any]:
    """Returns the rows of facts that were just inserted, as all other processes will read them."""
    if not facts:
        return []
    (row,) = selected_sql(table)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {row} FROM {quoted(table.name)} WHERE {quoted(table.id_column)} = ANY(%s::bigint[])",
            [[getattr(fact, fact.id_field) for fact in facts]],
        )
        return [row_of(table)(found) for found in cursor.fetchall()]


def _drop_at_end(
    stream: BoundStream,
    connection: BaseDatabaseWrapper,
    record: OpenTransaction,
    drops: frozenset[Invalidation],
    ids: list[int],
) -> None:
    alias, owner = connection.alias, connection
    pending = _Pending(record, drops)
    _pending[connection] = [*_open(_pending.get(connection, ())), pending]
    for number, other in list(_all_pending.items()):
        if other.record.left:
            _all_pending.pop(number, None)
    _all_pending[id(pending)] = pending
    spoil_begun(drops, owner)
    # The set of own IDs is fetched now, because it belongs to the present generation of the stream. A stream in memory gives out
    # the same IDs again in its next generation, and so does a restored database. Example: A learns late that its transaction
    # was committed, and by then B's fact has the same ID. B's fact must not be skipped.
    own_ids = cache_feed.own_ids(stream.name, alias)

    def end(written: bool) -> None:
        if written:
            apply_invalidations(drops, owner)
            # The IDs are added only now. The cache feed skips own facts, and must not skip these before their values are
            # dropped. Example: A's answer to COMMIT is lost. Another process finds A's facts complete, and A's cache feed
            # reads them before A knows how its transaction ended. Then the feed drops the values.
            own_ids.update(ids)
        _all_pending.pop(id(pending), None)

    record.at_end.append(end)


def _after_fork() -> None:
    """Clears the pending entries in a forked child, because the transactions belong to the parent."""
    _pending.clear()
    _all_pending.clear()


os.register_at_fork(after_in_child=_after_fork)


#: Number of lock rows for one table.
_LOCKS = 64


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
