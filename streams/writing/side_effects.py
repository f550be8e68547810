"""What else happens when facts are inserted: older rows vanish where only the newest is kept, cached values become old.

The values are dropped when the transaction is known to have committed, and before its facts are complete. Until then the
transaction itself computes them anew each time (``is_changed_here``), and everybody else still sees what was before. What
it had computed before it made them old is not kept at its end (``spoil_begun``).
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
from streams.core.invalidation import Drop, apply_drops, drops_nothing, spoil_begun, stores
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
    "has_effects",
    "is_changed_here",
    "is_changed_in_process",
    "keep_newest_of",
]


@dataclass(frozen=True, slots=True)
class _Pending:
    """What a transaction that is open on a connection is going to drop."""

    record: OpenTransaction
    drops: frozenset[Drop]

    def changes(self, cache: str, key: Key) -> bool:
        """Whether it drops that value."""
        return Drop(cache, key) in self.drops or Drop(cache, None) in self.drops


_pending: weakref.WeakKeyDictionary[BaseDatabaseWrapper, list[_Pending]] = weakref.WeakKeyDictionary()
#: The same of all connections; several threads change it, so nobody walks along it but by a copy.
_all_pending: dict[int, _Pending] = {}


def has_effects(stream: BoundStream, facts: Sequence[Fact]) -> bool:
    """Whether inserting these facts has to be followed by something."""
    return stream.keeps_newest or _may_drop_here(stream, facts)


def apply_side_effects(
    stream: BoundStream, connection: BaseDatabaseWrapper, record: OpenTransaction, facts: Sequence[Fact]
) -> None:
    """What follows from these facts, in the transaction that has just inserted them."""
    by_table = {table.name: [f for f in facts if f._meta.db_table == table.name] for table in stream.declaration.tables}
    for table in stream.declaration.tables:
        if table.newest_per and by_table[table.name]:
            compact_by_key(connection, table, by_table[table.name])
    if _may_drop_here(stream, facts):
        drops = _drops(stream, connection, by_table)
        _drop_at_end(stream, connection, record, drops, [abs(getattr(f, f.id_field)) for f in facts])


def is_changed_here(connection: BaseDatabaseWrapper, cache: str, key: Key) -> bool:
    """Whether the transaction that is open on this connection has made the value old."""
    waiting = _pending.get(connection)
    if not waiting:
        return False
    waiting[:] = _open(waiting)
    return any(pending.changes(cache, key) for pending in waiting)


def is_changed_in_process(cache: str, key: Key) -> bool:
    """Whether an open transaction of any connection of this process has made the value old.

    For code that cannot tell on which connection its queries go: between async code and the transaction lie threads.
    """
    return bool(_all_pending) and any(pending.changes(cache, key) for pending in _open(list(_all_pending.values())))


def _open(waiting: Sequence[_Pending]) -> list[_Pending]:
    """Those whose transaction the connection is in.

    How a transaction ended may be known late, or never: A rolls back, and its writer is closed before it has asked. That
    A's connection has left it is known at once. If it was committed nevertheless, the feed drops the values.
    """
    return [pending for pending in waiting if not pending.record.left]


def _may_drop_here(stream: BoundStream, facts: Sequence[Fact]) -> bool:
    """Whether these facts may make values of this process old; most events change no room's state."""
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
    """The values of the columns as they are stored: JSON as other processes are going to read it."""
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
) -> frozenset[Drop]:
    drops: set[Drop] = set()
    rows: list[Sequence[Any]] = []
    for table in stream.declaration.tables:
        for fact in by_table[table.name]:
            values = _values(table, fact)
            if stream.dropped_caches and any(isinstance(value, BaseExpression) for value in values):
                # The key may be what only the database knows.
                drops |= {Drop(cache, None) for cache in stream.dropped_caches}
            else:
                rows.append(table.row(values))
    with connection.cursor() as cursor:
        return frozenset(drops | stream.drops_of(cursor, rows))


def _drop_at_end(
    stream: BoundStream,
    connection: BaseDatabaseWrapper,
    record: OpenTransaction,
    drops: frozenset[Drop],
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

    def end(written: bool) -> None:
        if written:
            apply_drops(drops, owner)
            # Not before: A's answer to COMMIT is lost, another process takes A's facts for complete, and A's feed reads them
            # before A has learnt how its transaction ended. They are then dropped by the feed.
            cache_feed.note_own(stream.name, ids, alias)
        _all_pending.pop(id(pending), None)

    record.at_end.append(end)


def _after_fork() -> None:
    """The parent's transactions are not the child's."""
    _pending.clear()
    _all_pending.clear()


os.register_at_fork(after_in_child=_after_fork)


#: Locks per table, so that a batch of very many values does not need very many.
_LOCKS = 64

_LOCK = """
SELECT pg_advisory_xact_lock(hashtextextended(%(table)s, number))
FROM (SELECT DISTINCT hashtextextended(value, 0) & %(mask)s AS number FROM unnest(%(values)s::text[]) AS value ORDER BY 1)
    AS numbers
"""


def compact_by_key(connection: BaseDatabaseWrapper, table: FactTable, facts: Sequence[Fact]) -> None:
    """Delete all but the newest row for each value that these facts have; in the transaction that inserted them."""
    values = sorted({str(getattr(fact, table.newest_per)) for fact in facts})
    with connection.cursor() as cursor:
        keep_newest_of(cursor, table, values)


def keep_newest_of(cursor: Any, table: FactTable, values: Sequence[str]) -> None:
    """Delete all but the newest row for each of these values; in the transaction that inserted rows with them.

    So a table keeps the present state of each user, for instance, and no row ever changes under its ID. In a transaction
    with a frozen snapshot an older row may stay; the next one deletes it.
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
