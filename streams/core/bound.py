"""Binds a declared stream to the models of its tables, for the engine (pure).

``streams.stream_object.Stream`` adds the methods that users call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streams.core.declaration import StreamDeclaration
from streams.core.queries import maximum_sql
from streams.core.sequences import last_values
from streams.errors import ForeignFact

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

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    def add_model(self, model: type[Any], sample: Sample | None) -> None:
        """Binds the model of one more table to the stream. Called by ``streams.registry.bind``."""
        self.models.append(model)
        self.sample = sample or self.sample

    def check_class(self, fact: Any) -> None:
        """Raises ``ForeignFact`` unless the object's class is one of the stream's ``models``, or a proxy of one."""
        if type(fact) not in self.models and _concrete_model(fact) not in self.models:
            raise ForeignFact(
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


def _concrete_model(fact: Any) -> Any:
    return getattr(getattr(fact, "_meta", None), "concrete_model", None)
