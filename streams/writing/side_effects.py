"""Does what must follow an insert of facts: deletes older rows where only the newest is kept, and invalidates cached values.

Cached values are dropped when the transaction is known to have committed, before its facts are complete. Until then the
transaction itself computes them on every call (``is_changed_here``), and other connections still get the old values.
Values that the transaction had begun to compute before its insert are not kept (``spoil_begun``).
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models.expressions import BaseExpression

from streams.core.declaration import ColumnKind
from streams.core.invalidation import Invalidation, apply_invalidations, drops_nothing, spoil_begun, stores
from streams.db.driver import schema_mark
from streams.reading import cache_feed
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
    """The invalidations that an open transaction makes when it commits."""

    record: OpenTransaction
    drops: frozenset[Invalidation]

    def changes(self, cache: str, key: Key) -> bool:
        """Returns true if the value is among them, by its key or because the whole cache is dropped."""
        return Invalidation(cache, key) in self.drops or Invalidation(cache, None) in self.drops


_pending: weakref.WeakKeyDictionary[BaseDatabaseWrapper, list[_Pending]] = weakref.WeakKeyDictionary()
#: The same for all connections, by ``id()`` of the entry. Several threads change it, so iterate over a copy.
_all_pending: dict[int, _Pending] = {}


def has_effects(stream: BoundStream, facts: Sequence[Fact]) -> bool:
    """Returns true if ``apply_side_effects`` must be called after these facts are inserted."""
    return stream.keeps_newest or _may_drop_here(stream, facts)


def apply_side_effects(
    stream: BoundStream, connection: BaseDatabaseWrapper, record: OpenTransaction, facts: Sequence[Fact]
) -> None:
    """Applies the effects of these facts. Must be called in the transaction that has just inserted them."""
    by_table = {table.name: [f for f in facts if f._meta.db_table == table.name] for table in stream.declaration.tables}
    for table in stream.declaration.tables:
        if table.newest_per and by_table[table.name]:
            compact_by_key(connection, table, by_table[table.name])
    if _may_drop_here(stream, facts):
        drops = _drops(stream, connection, by_table)
        _drop_at_end(stream, connection, record, drops, [abs(getattr(f, f.id_field)) for f in facts])


def is_changed_here(connection: BaseDatabaseWrapper, cache: str, key: Key) -> bool:
    """Returns true if the transaction that is open on this connection has made the cached value out of date."""
    waiting = _pending.get(connection)
    if not waiting:
        return False
    waiting[:] = _open(waiting)
    return any(pending.changes(cache, key) for pending in waiting)


def is_changed_in_process(cache: str, key: Key) -> bool:
    """Returns true if an open transaction of any connection of this process has made the cached value out of date.

    For code that cannot know which connection its queries use: async code runs its transactions in other threads.
    """
    return bool(_all_pending) and any(pending.changes(cache, key) for pending in _open(list(_all_pending.values())))


def _open(waiting: Sequence[_Pending]) -> list[_Pending]:
    """Returns the entries whose transaction is still open on its connection."""
    # Not ``ended``: how a transaction ended may be known late, or never. A rolls back, and its writer is closed before it has
    # asked. That A's connection has left the transaction is known at once. If it was committed, the feed drops the values.
    return [pending for pending in waiting if not pending.record.left]


def _may_drop_here(stream: BoundStream, facts: Sequence[Fact]) -> bool:
    """Returns true if these facts may invalidate values of this process. Most events do not: they change no room's state."""
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
    """Returns the values of the table's columns as they are stored. JSON is as other processes will read it."""
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
        for fact in by_table[table.name]:
            values = _values(table, fact)
            if stream.dropped_caches and any(isinstance(value, BaseExpression) for value in values):
                # The key may be an SQL expression, whose value only the database knows: drop the whole caches.
                drops |= {Invalidation(cache, None) for cache in stream.dropped_caches}
            else:
                rows.append(table.row(values))
    with connection.cursor() as cursor:
        return frozenset(drops | stream.drops_of(cursor, rows))


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
    # Taken now, in the life of the stream in which the IDs were given out. A stream in memory gives them out again in its next
    # generation, and a restored database does so, too. A learns late that its transaction was committed, and B's fact has the
    # same ID by then: B's fact must not be skipped.
    own_ids = cache_feed.own_ids(stream.name, alias)

    def end(written: bool) -> None:
        if written:
            apply_invalidations(drops, owner)
            # Only now, so that the feed does not skip these facts earlier. A's answer to COMMIT is lost. Another process
            # finds A's facts complete, and A's feed reads them before A knows how its transaction ended: then the feed
            # drops the values.
            own_ids.update(ids)
        _all_pending.pop(id(pending), None)

    record.at_end.append(end)


def _after_fork() -> None:
    """Clears the tables in a child: the parent's transactions are not the child's."""
    _pending.clear()
    _all_pending.clear()


os.register_at_fork(after_in_child=_after_fork)


#: Advisory locks of one table. Keys share them by hash, so that a batch of very many keys needs few locks.
_LOCKS = 64

_LOCK = """
SELECT pg_advisory_xact_lock(hashtextextended(%(table)s, number))
FROM (SELECT DISTINCT hashtextextended(value, 0) & %(mask)s AS number FROM unnest(%(values)s::text[]) AS value ORDER BY 1)
    AS numbers
"""


def compact_by_key(connection: BaseDatabaseWrapper, table: FactTable, facts: Sequence[Fact]) -> None:
    """Deletes all but the newest row for each key (``newest_per``) of these facts.

    Must be called in the transaction that inserted them.
    """
    values = sorted({str(getattr(fact, table.newest_per)) for fact in facts})
    with connection.cursor() as cursor:
        compact_keys(cursor, table, values)


def compact_keys(cursor: Any, table: FactTable, values: Sequence[str]) -> None:
    """Deletes all but the newest row for each of these keys. Must be called in the transaction that inserted rows with them.

    A table then holds the present state of each user, for instance, and no row ever changes under its ID. In a
    transaction with a frozen snapshot an older row may stay. The next call deletes it.
    """
    # A and B insert a row for the same value. Without the lock neither sees the other's row, and both stay. With it B waits
    # between its insert and its delete until A has committed, and sees A's.
    parameters: dict[str, Any] = {
        "table": f"replsite.newest:{table.name}{schema_mark(cursor)}",
        "mask": _LOCKS - 1,
        "values": list(values),
    }
    cursor.execute(_LOCK, parameters)
    cursor.execute(
        f"""
        DELETE FROM {table.name} AS old USING (
            SELECT {table.newest_per} AS value, max({table.id_column}) AS id FROM {table.name}
            WHERE {table.newest_per} = ANY(%(values)s) GROUP BY 1
        ) AS newest
        WHERE old.{table.newest_per} = newest.value AND old.{table.id_column} < newest.id
        """,
        parameters,
    )
