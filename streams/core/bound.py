"""Binds a declared stream to the models of its tables, for the engine (pure).

``streams.stream_object.Stream`` adds the methods that users call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from streams.core.declaration import StreamDeclaration
from streams.core.invalidation import (
    Drops,
    Invalidation,
    KeyRule,
    StateChanges,
    any_depends_on_room_state,
    drops_nothing,
    drops_of_caches_row,
    drops_of_columns,
    drops_of_room_state,
)
from streams.core.named_rows import places_of
from streams.core.queries import ids_sql, maximum_sql
from streams.core.sequences import last_values
from streams.errors import ForeignFact

__all__ = ["BoundStream", "Sample"]

#: ``sample(number, thread) -> field values`` of one made-up fact, for the load generator.
Sample = Callable[[int, int], Mapping[str, Any]]


class BoundStream:
    """A declared stream with the models of its tables. There is one object per stream and process."""

    def __init__(self, declaration: StreamDeclaration) -> None:
        self.declaration = declaration
        #: The stream's name, as on the wire.
        self.name = declaration.name
        #: -1 if IDs are stored negated in the tables (a backward stream), else 1. Everywhere else IDs are positive.
        self.sign = declaration.sign
        #: True if a table keeps only the newest row for each value of a column.
        self.keeps_newest = any(table.newest_per for table in declaration.tables)
        self.models: list[type[Any]] = []
        self.sample: Sample | None = None
        #: The other streams that take their IDs from the same sequence. Their positions move when this stream is written.
        self.sharing: list[BoundStream] = []
        #: The function from a row to its invalidations. ``dropped_caches`` names the caches that it may invalidate.
        self.drops: Drops = drops_of_caches_row if declaration.name == "caches" else drops_nothing
        self.dropped_caches: frozenset[str] = frozenset()
        #: The rule by which rows change the current state of rooms, if they do.
        self.state_changes: StateChanges | None = None
        #: Called with the cursor when a stream in memory starts again at 0, in the same transaction.
        self.when_begun_anew: list[Callable[[Any], None]] = []

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    def add_model(self, model: type[Any], sample: Sample | None) -> None:
        """Binds the model of one more table to the stream. Called by ``streams.registry.bind``."""
        self.models.append(model)
        self.sample = sample or self.sample

    def add_caches(self, table: str, caches: Mapping[str, KeyRule]) -> None:
        """Declares that rows of the table invalidate values of these caches. Called by ``streams.registry.bind``."""
        declared = next(found for found in self.declaration.tables if found.name == table)
        self.drops = drops_of_columns(places_of(declared), caches)
        self.dropped_caches = frozenset(caches)

    def may_drop(self) -> bool:
        """Returns true if rows of the stream can ever invalidate cached values.

        Unlike ``drops_now``, this includes values of cached functions that this process has not declared yet.
        """
        return self.drops is not drops_nothing or self.state_changes is not None

    def drops_now(self) -> bool:
        """Returns true if rows of the stream can invalidate values of the cached functions declared so far in this process."""
        return self.drops is not drops_nothing or (self.state_changes is not None and any_depends_on_room_state())

    def drops_of(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> set[Invalidation]:
        """Returns the invalidations that these rows cause."""
        found = {drop for row in rows for drop in self.drops(row)}
        if self.state_changes is not None and any_depends_on_room_state():
            telling = [row for row in rows if self.state_changes.may_change(row)]
            for room_id, users in self.state_changes.changed(cursor, telling) if telling else ():
                found.update(drops_of_room_state(room_id, users))
        return found

    def foreign(self, fact: Any) -> ForeignFact:
        """Returns the error for an object whose class is not one of the stream's ``models``."""
        return ForeignFact(
            f"{type(fact).__name__} holds no facts of stream {self.name!r}; "
            f"it is made of {', '.join(model.__name__ for model in self.models)}."
        )

    # --- reading the database (cursors of any connection) ---------------------------------------------------------

    def sequence_value(self, cursor: Any) -> int:
        """Returns the last ID that the sequence gave out.

        If the sequence gave out no ID yet, returns one less than its first one.
        """
        (value,) = last_values(cursor, [self.declaration.sequence]).values()
        return value

    def table_maximum(self, cursor: Any) -> int:
        """Returns the largest ID that the stream's tables hold, or held before a trim. Returns 0 if they never held a row.

        Includes the tables of all streams that share its sequence.
        """
        found = 0
        for stream in (self, *self.sharing):
            cursor.execute(maximum_sql(stream.declaration))
            found = max(found, int(cursor.fetchone()[0]))
        return found

    def ids_from(self, cursor: Any, linear: int) -> Iterator[tuple[str, int]]:
        """Yields (writer, ID) of every row with an ID of at least ``linear``, in ascending order of ID."""
        cursor.execute(ids_sql(self.declaration), {"linear": linear})
        yield from cursor
