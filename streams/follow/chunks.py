"""The argument of a handler: a chunk of whole facts of one stream, with their model instances on demand.

A chunk always has the rows as they are sent. The first use of ``instances`` makes one query per table for the whole chunk.
If the rows of a fact were trimmed or deleted by hand after they were read, the fact still has its ``rows`` but no
``instances``. The handler decides what to do with such a fact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from streams import registry
from streams.replication.protocol.ordering import FollowedRow

if TYPE_CHECKING:
    from django.db.models import Model

__all__ = ["Chunk", "FollowedFact", "pieces"]


@dataclass(frozen=True, slots=True)
class FollowedFact:
    """One fact: its token (its ID), its writer, and its rows as they are sent.

    The first use of ``instances`` loads the model instances of the whole chunk.
    """

    stream: str
    token: int
    writer: str
    rows: tuple[Any, ...]
    _chunk: Chunk = field(repr=False, compare=False)

    @property
    def instances(self) -> list[Any]:
        """The model instances of the fact, in the order of its rows. Instances of deleted rows are missing."""
        return self._chunk.instances_of(self.token)


class Chunk:
    """Some whole facts of one stream, in the handler's delivery order.

    Iteration yields ``FollowedFact`` objects, and ``len`` returns the number of facts.
    """

    def __init__(self, stream: str, rows: Sequence[FollowedRow], using: str) -> None:
        self.stream = stream
        self.rows = rows
        self._using = using

    def __repr__(self) -> str:
        return f"<Chunk of {self.stream}: {len(self.rows)} rows up to {self.rows[-1].token}>"

    def __len__(self) -> int:
        return self.fact_count

    def __iter__(self) -> Iterator[FollowedFact]:
        return iter(self.facts)

    @cached_property
    def fact_count(self) -> int:
        """The number of facts, counted without creating ``FollowedFact`` objects."""
        return len({row.token for row in self.rows})

    @cached_property
    def facts(self) -> list[FollowedFact]:
        """The facts, each with all its rows."""
        return [
            FollowedFact(self.stream, token, writer, tuple(row.row for row in rows), self)
            for (token, writer), rows in groupby(self.rows, lambda row: (row.token, row.instance))
        ]

    @property
    def instances(self) -> list[Any]:
        """The model instances of all facts, in order. The first use makes one query per table of the stream."""
        return [instance for fact in self.facts for instance in self.instances_of(fact.token)]

    def instances_of(self, token: int) -> list[Model]:
        """Returns the model instances of the fact with that token. Returns an empty list if its rows were deleted."""
        return self._instances.get(token, [])

    def unloaded_copy(self) -> Chunk:
        """Returns a chunk of the same rows without loaded instances, so that another attempt loads them again."""
        return Chunk(self.stream, self.rows, self._using)

    def halves(self) -> tuple[Chunk, Chunk]:
        """Splits a chunk on which the handler failed into two chunks of whole facts. The chunk must have two facts or more."""
        rows, middle = self.rows, len(self.rows) // 2
        while middle and rows[middle].token == rows[middle - 1].token:
            middle -= 1
        if middle == 0:  # the rows of the first fact reach beyond the middle
            middle = next(place for place, row in enumerate(rows) if row.token != rows[0].token)
        return Chunk(self.stream, rows[:middle], self._using), Chunk(self.stream, rows[middle:], self._using)

    @cached_property
    def _instances(self) -> dict[int, list[Model]]:
        stream = registry.get(self.stream)
        sign = stream.sign
        wanted = list({row.token for row in self.rows})
        by_table = {model._meta.db_table: model for model in stream.models}
        found: dict[int, list[Model]] = {}
        for table in stream.declaration.tables:
            model = by_table[table.name]
            id_field = getattr(model, "id_field", table.id_column)
            order = [id_field, table.then_by] if table.then_by else [id_field]
            query = model._default_manager.using(self._using).filter(**{f"{id_field}__in": [t * sign for t in wanted]})
            for instance in query.order_by(*order):
                found.setdefault(getattr(instance, id_field) * sign, []).append(instance)
        return found


def pieces(rows: Sequence[FollowedRow], most: int) -> Iterator[Sequence[FollowedRow]]:
    """Yields the rows in pieces of about ``most`` rows. A fact is never split, so a piece may be larger.

    Only the last piece may have fewer than ``most`` rows.
    """
    begin = 0
    while begin < len(rows):
        end = min(begin + most, len(rows))
        while end < len(rows) and rows[end].token == rows[end - 1].token:
            end += 1
        yield rows[begin:end]
        begin = end
