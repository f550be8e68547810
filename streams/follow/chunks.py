"""The argument of a handler: a chunk of whole facts of one stream, with their model instances on demand.

``Chunk.rows`` are the rows as they were read from the tables or received from a server. Each fact of the chunk has its
rows converted to this program's version of the stream (``FollowedFact.rows``). The first use of ``instances`` makes one
query per table for the whole chunk. A fact's rows may be trimmed or deleted by hand after the reader has read them.
Then the fact still has its ``rows``, but no ``instances``. The handler decides what to do with such a fact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from streams import registry
from streams.errors import UnusableFact
from streams.facts import all_rows
from streams.instances import row_of_this_version
from streams.replication.protocol.ordering import FollowedRow

if TYPE_CHECKING:
    from django.db.models import Model


@dataclass(frozen=True, slots=True)
class FollowedFact:
    """One fact: its token (its ID), its writer, and its rows as they were read or received (``sent``).

    The first use of ``instances`` loads the model instances of the whole chunk.
    """

    stream: str
    token: int
    writer: str
    sent: tuple[Any, ...]
    _chunk: Chunk = field(repr=False, compare=False)

    @property
    def rows(self) -> tuple[Any, ...]:
        """The rows in this program's version of the stream. Raises ``UnknownVersion`` if an upcast of a row is missing."""
        stream = registry.get(self.stream)
        return tuple(row_of_this_version(stream, row) for row in self.sent)

    @property
    def instances(self) -> list[Any]:
        """The model instances of the fact, in the order of its rows. There is no instance for a row that was deleted."""
        return self._chunk.instances_of(self.token)

    def made_instances(self) -> list[Any]:
        """Returns a model instance for each row of the fact.

        If the rows have named fields, creates the instances from the rows. Otherwise loads the instances from the
        table. Then raises ``UnusableFact`` if rows of the fact were deleted after the reader had read them.
        """
        stream = registry.get(self.stream)
        if stream.has_named_rows:
            using = self._chunk.using
            made = [stream.fact(row, token=self.token, writer=self.writer, using=using) for row in self.sent]
            if len(made) == 1 and made[0].pk is None:
                del made[0].__dict__[
                    made[0]._meta.pk.attname
                ]  # loaded when it is used, as other fields that are not sent
            return made
        found = self.instances
        if len(found) < len(self.sent):
            raise UnusableFact(
                f"Stream {self.stream!r}: the rows of fact {self.token} were deleted since it was read, so there is no "
                f"instance of it. Drop it: manage.py parked drop READER --token {self.token}."
            )
        return found


class Chunk:
    """Some whole facts of one stream, in the handler's delivery order.

    Iteration yields ``FollowedFact`` objects, and ``len`` returns the number of facts.
    """

    def __init__(self, stream: str, rows: Sequence[FollowedRow], using: str, loaded_with: Chunk | None = None) -> None:
        self.stream = stream
        self.rows = rows
        self.using = using
        self._loaded_with = loaded_with  # a chunk that has these rows and loads the instances of both

    def __repr__(self) -> str:
        return f"<Chunk of {self.stream}: {len(self.rows)} rows up to {self.rows[-1].token}>"

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"A chunk of facts has no {name!r}. For one instance at a time, declare the handler with each=True",
                name=name,
                obj=self,
            )

    def __len__(self) -> int:
        return self.fact_count

    def __iter__(self) -> Iterator[FollowedFact]:
        return iter(self.facts)

    @cached_property
    def fact_count(self) -> int:
        """The number of facts of the chunk, counted without creating ``FollowedFact`` objects."""
        return len({row.token for row in self.rows})

    @cached_property
    def facts(self) -> list[FollowedFact]:
        return [
            FollowedFact(self.stream, token, writer, tuple(row.row for row in rows), self)
            for (token, writer), rows in groupby(self.rows, lambda row: (row.token, row.instance))
        ]

    @property
    def instances(self) -> list[Any]:
        """The model instances of all facts of the chunk, in order. The first use makes one query per table of the stream."""
        return [instance for fact in self.facts for instance in self.instances_of(fact.token)]

    def instances_of(self, token: int) -> list[Model]:
        """Returns the model instances of the fact with the token ``token``, or an empty list if the fact's rows were deleted."""
        return self._instances.get(token, [])

    def unloaded_copy(self) -> Chunk:
        """Returns a chunk of the same rows without loaded model instances, so that another attempt loads the instances again."""
        return Chunk(self.stream, self.rows, self.using)

    def singles(self) -> list[Chunk]:
        """Returns one chunk for each fact. One query per table loads the model instances of all these chunks together."""
        parts = groupby(self.rows, lambda row: (row.token, row.instance))
        return [Chunk(self.stream, list(rows), self.using, self) for _, rows in parts]

    def halves(self) -> tuple[Chunk, Chunk]:
        """Splits a chunk on which the handler failed into two chunks of whole facts. The chunk must have two facts or more."""
        rows, middle = self.rows, len(self.rows) // 2
        while middle and rows[middle].token == rows[middle - 1].token:
            middle -= 1
        if middle == 0:  # the rows of the first fact reach beyond the middle
            middle = next(place for place, row in enumerate(rows) if row.token != rows[0].token)
        return Chunk(self.stream, rows[:middle], self.using), Chunk(self.stream, rows[middle:], self.using)

    @cached_property
    def _instances(self) -> dict[int, list[Model]]:
        if self._loaded_with is not None:
            return self._loaded_with._instances
        stream = registry.get(self.stream)
        sign = stream.sign
        wanted = list({row.token for row in self.rows})
        by_table = {model._meta.db_table: model for model in stream.models}
        found: dict[int, list[Model]] = {}
        for table in stream.declaration.tables:
            model = by_table[table.name]
            id_field = getattr(model, "id_field", table.id_column)
            order = [id_field, table.then_by] if table.then_by else [id_field]
            query = all_rows(model, self.using).filter(**{f"{id_field}__in": [t * sign for t in wanted]})
            for instance in query.order_by(*order):
                found.setdefault(getattr(instance, id_field) * sign, []).append(instance)
        return found
