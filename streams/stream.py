"""A stream bound to its models: what the program holds in its hands to append and to read.

``append`` and ``reserve`` work in the caller's transaction, nested ``atomic`` blocks included, from any thread; ``aappend`` is
for async code. Reading goes through ``streams.reading.rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from streams.core.declaration import StreamDeclaration
from streams.core.invalidation import (
    Drop,
    Drops,
    KeyRule,
    StateChanges,
    any_depends_on_room_state,
    drops_nothing,
    drops_of_caches_row,
    drops_of_columns,
    drops_of_room_state,
)
from streams.core.queries import ids_between_sql, ids_sql, maximum_sql, sequence_sql
from streams.db.sequences import move_forward
from streams.errors import ForeignFact

if TYPE_CHECKING:
    from django.db.models import Model

    from streams.core.tokens import VectorToken
    from streams.facts import Fact
    from streams.registry import Sample
    from streams.waiting.current import Current
    from streams.waiting.wait import Token
    from streams.writing.reservation import Reservation

__all__ = ["Stream"]

#: A new life gives up when rows that it deletes are locked for so long: perhaps by who waits for it.
LOCK_SECONDS = 10


class Stream:
    """A declared stream with the models of its tables; one object per stream and process."""

    def __init__(self, declaration: StreamDeclaration) -> None:
        self.declaration = declaration
        self.models: list[type[Model]] = []
        self.sample: Sample | None = None
        #: Which cached values a row makes old, and the caches that it may concern.
        self.drops: Drops = drops_of_caches_row if declaration.name == "caches" else drops_nothing
        self.dropped_caches: frozenset[str] = frozenset()
        #: Which rooms' current state the rows change.
        self.state_changes: StateChanges | None = None
        #: Called with the cursor when a stream in memory begins anew, in the same transaction.
        self.when_begun_anew: list[Callable[[Any], None]] = []

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    @property
    def name(self) -> str:
        """The stream's name, as on the wire."""
        return self.declaration.name

    def add_model(self, model: type[Model], sample: Sample | None) -> None:
        """Bind one more table; used by ``streams.registry.bind``."""
        self.models.append(model)
        self.sample = sample or self.sample

    def add_caches(self, table: str, caches: Mapping[str, KeyRule]) -> None:
        """Rows make values of these caches old; used by ``streams.registry.bind``."""
        declared = next(found for found in self.declaration.tables if found.name == table)
        names = [column.name for column in declared.columns] if declared.row is list else []
        self.drops = drops_of_columns(names, caches)
        self.dropped_caches = frozenset(caches)

    def may_drop(self) -> bool:
        """Whether rows of the stream can make cached values old, those of functions that are declared later included."""
        return self.drops is not drops_nothing or self.state_changes is not None

    def drops_now(self) -> bool:
        """Whether rows of the stream can make values of the functions of this process old."""
        return self.drops is not drops_nothing or (self.state_changes is not None and any_depends_on_room_state())

    def drops_of(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> set[Drop]:
        """The cached values that these rows make old."""
        found = {drop for row in rows for drop in self.drops(row)}
        if self.state_changes is not None and any_depends_on_room_state():
            telling = [row for row in rows if self.state_changes.may_change(row)]
            for room_id, users in self.state_changes.changed(cursor, telling) if telling else ():
                found.update(drops_of_room_state(room_id, users))
        return found

    def check_model(self, fact: Fact) -> None:
        """Raise ``ForeignFact`` for a row of a table that is none of the stream's."""
        if type(fact) not in self.models:
            raise ForeignFact(
                f"{type(fact).__name__} holds no facts of stream {self.name!r}; "
                f"it is made of {', '.join(model.__name__ for model in self.models)}."
            )

    # --- write ----------------------------------------------------------------------------------------------------

    def reserve(self, count: int = 1, using: str | None = None) -> Reservation:
        """Reserve IDs for ``count`` facts; a context manager that gives the reservation.

        Inside it the caller's transaction is open (one is opened when there is none). The IDs are complete once the
        outermost transaction is known to have ended. Raises ``BadCount``, ``WriterNameTaken``, ``WriterNotAllowed``,
        ``WriterFenced``.
        """
        from streams.writing.reservation import Reservation  # noqa: PLC0415 - needs Django's apps to be loaded

        return Reservation(self, count, using)

    def append(self, *facts: Fact, using: str | None = None) -> list[int]:
        """Append facts, one row each, each under its own ID; returns the IDs (positive), ascending.

        In the caller's transaction if there is one: readers see the facts after its commit. Refuses, before anything is
        reserved, no facts at all (``BadCount``), and facts of other streams, with an ID or given twice (``ForeignFact``).
        """
        from streams.writing.append import append_facts  # noqa: PLC0415 - needs Django's apps to be loaded

        return append_facts(self, facts, using)

    async def aappend(self, *facts: Fact, using: str | None = None) -> list[int]:
        """``append`` for async code; runs in the thread that Django keeps for database work."""
        return await sync_to_async(self.append, thread_sensitive=True)(*facts, using=using)

    # --- where it is ----------------------------------------------------------------------------------------------

    def current(self, using: str | None = None) -> Current:
        """Both ends of "current", by name: the minimum view to wait for, the maximum view that is announced. One query."""
        from streams.waiting.current import current  # noqa: PLC0415 - needs Django's apps to be loaded

        return current(self, using)

    def wait_for(self, token: Token, timeout_seconds: float = 5.0, using: str | None = None) -> VectorToken:
        """Block until this process sees everything that the token (a position, a vector or its text) covers.

        Returns where the stream is then. Raises ``WaitTimedOut``, ``TokenError``, ``EpochChanged``; see
        ``streams.waiting.wait``.
        """
        from streams.waiting.wait import wait_for  # noqa: PLC0415 - needs Django's apps to be loaded

        return wait_for(self, token, timeout_seconds, using)

    async def await_for(self, token: Token, timeout_seconds: float = 5.0, using: str | None = None) -> VectorToken:
        """``wait_for`` for async code."""
        from streams.waiting.wait import await_for  # noqa: PLC0415 - needs Django's apps to be loaded

        return await await_for(self, token, timeout_seconds, using)

    # --- what the database says (cursors of any connection) -------------------------------------------------------

    def sequence_value(self, cursor: Any) -> int:
        """The last ID that the sequence gave out; 0 if it never did."""
        cursor.execute(sequence_sql(self.declaration))
        return int(cursor.fetchone()[0])

    def set_sequence(self, cursor: Any, value: int) -> None:
        """Move the sequence forward so that the next ID is above ``value``; never lowers it, also beside other writers."""
        move_forward(cursor, self.declaration.sequence, value)

    def table_maximum(self, cursor: Any) -> int:
        """The largest ID in the tables of the stream, and of those that share its sequence; 0 when they are empty."""
        from streams.registry import sharing  # noqa: PLC0415 - the registry makes streams

        found = 0
        for stream in (self, *sharing(self)):
            cursor.execute(maximum_sql(stream.declaration))
            found = max(found, int(cursor.fetchone()[0]))
        return found

    def begin_anew(self, cursor: Any) -> None:
        """A stream in memory starts at 0 again: no facts, no position, another generation.

        Called in the transaction in which a writer enters, when no other lives. Whoever sees the new generation
        knows that lower positions are no mistake, also when the writer has come far already.
        """
        # A crash must not take back a life that others heard of: the next one would have its number, and its IDs again.
        cursor.execute(f"SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
        for table in self.declaration.tables:
            cursor.execute(f"DELETE FROM {table.name}")
        cursor.execute("SELECT setval(%s, 1, false)", [self.declaration.sequence])
        cursor.execute(
            "UPDATE streams_streamposition SET position = 0, last_write_position = NULL, generation = generation + 1, "
            "last_advance_at = clock_timestamp(), updated_at = clock_timestamp() WHERE stream = %s",
            [self.name],
        )
        for forget in self.when_begun_anew:
            forget(cursor)

    def ids_between(self, cursor: Any, after: int, upto: int) -> list[int]:
        """IDs of committed facts with ``after`` < ID <= ``upto``, ascending."""
        cursor.execute(ids_between_sql(self.declaration), {"after": after, "upto": upto})
        return [row[0] for row in cursor.fetchall()]

    def ids_from(self, cursor: Any, linear: int) -> Iterator[tuple[str, int]]:
        """(writer, ID) of all rows at or above a position, ascending."""
        cursor.execute(ids_sql(self.declaration), {"linear": linear})
        yield from cursor
