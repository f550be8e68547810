"""What else happens when facts are inserted: older rows vanish where only the newest is kept, cached values become old.

The values are dropped when the transaction is known to have committed, and before its facts are complete. Until then the
transaction itself computes them anew each time (``is_changed_here``), and everybody else still sees what was before.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models.expressions import DatabaseDefault

from streams import cache_feed
from streams.invalidations import Drop, all_stores, apply_drops, drops_nothing
from streams.newest import keep_newest

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from streams.cache_store import Key
    from streams.declaration import FactTable
    from streams.facts import Fact
    from streams.reservations import OpenTransaction
    from streams.stream import Stream

__all__ = ["has_effects", "is_changed_here", "take_effect"]


@dataclass(frozen=True, slots=True)
class _Pending:
    """What a transaction that is open on a connection is going to drop."""

    record: OpenTransaction
    drops: frozenset[Drop]


_pending: weakref.WeakKeyDictionary[BaseDatabaseWrapper, list[_Pending]] = weakref.WeakKeyDictionary()


def has_effects(stream: Stream) -> bool:
    """Whether inserting facts of the stream has to be followed by something."""
    return _drops_here(stream) or any(table.newest_per for table in stream.declaration.tables)


def take_effect(
    stream: Stream, connection: BaseDatabaseWrapper, record: OpenTransaction, facts: Sequence[Fact]
) -> None:
    """What follows from these facts, in the transaction that has just inserted them."""
    by_table = {table.name: [f for f in facts if f._meta.db_table == table.name] for table in stream.declaration.tables}
    drops: set[Drop] = set()
    for table in stream.declaration.tables:
        if table.newest_per and by_table[table.name]:
            keep_newest(connection, table, by_table[table.name])
        if _drops_here(stream):
            for fact in by_table[table.name]:
                drops |= _drops(stream, table, fact)
    if _drops_here(stream):
        _drop_at_end(stream, connection, record, frozenset(drops), [abs(getattr(f, f.id_field)) for f in facts])


def is_changed_here(connection: BaseDatabaseWrapper, cache: str, key: Key) -> bool:
    """Whether the transaction that is open on this connection has made the value old."""
    waiting = _pending.get(connection)
    if not waiting:
        return False
    waiting[:] = [pending for pending in waiting if not pending.record.ended]
    return any(Drop(cache, key) in pending.drops or Drop(cache, None) in pending.drops for pending in waiting)


def _drops_here(stream: Stream) -> bool:
    return stream.drops is not drops_nothing and bool(all_stores())


def _drops(stream: Stream, table: FactTable, fact: Fact) -> set[Drop]:
    attributes = {field.column: field.attname for field in fact._meta.concrete_fields}
    values: list[Any] = [getattr(fact, attributes[column.name]) for column in table.columns]
    if stream.dropped_caches and any(isinstance(value, DatabaseDefault) for value in values):
        return {Drop(cache, None) for cache in stream.dropped_caches}  # the key may be what only the database knows
    return set(stream.drops(table.row(values)))


def _drop_at_end(
    stream: Stream, connection: BaseDatabaseWrapper, record: OpenTransaction, drops: frozenset[Drop], ids: list[int]
) -> None:
    alias, owner = connection.alias, connection
    _pending.setdefault(connection, []).append(_Pending(record, drops))
    cache_feed.note_own(stream.name, ids, alias)

    def end(written: bool) -> None:
        if written:
            apply_drops(drops, owner)
        else:
            cache_feed.forget_own(stream.name, ids, alias)

    record.at_end.append(end)
