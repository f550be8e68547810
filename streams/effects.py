"""What else happens when facts are inserted: older rows vanish where only the newest is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streams.newest import keep_newest

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from streams.facts import Fact
    from streams.reservations import OpenTransaction
    from streams.stream import Stream

__all__ = ["has_effects", "take_effect"]


def has_effects(stream: Stream) -> bool:
    """Whether inserting facts of the stream has to be followed by something."""
    return any(table.newest_per for table in stream.declaration.tables)


def take_effect(
    stream: Stream, connection: BaseDatabaseWrapper, record: OpenTransaction, facts: Sequence[Fact]
) -> None:
    """What follows from these facts, in the transaction that has just inserted them."""
    for table in stream.declaration.tables:
        if table.newest_per and (rows := [fact for fact in facts if fact._meta.db_table == table.name]):
            keep_newest(connection, table, rows)
