"""Declares a stream by one class: a decorated model.

    @stream("orders", "order_id", "status")
    class Order(Fact):
        order_id = models.TextField()
        status = models.TextField()

The wire row is the list of the named columns. Streams that Spark must read without Django have a pure declaration instead
(``streams.catalog``) and bind to it with ``streams.registry.bind``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from django.db.migrations.operations import RunSQL
from django.db.models import Field, Model

from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration
from streams.core.invalidation import KeyRule
from streams.registry import Sample, bind

__all__ = ["CreateStreamSequence", "sequence_of", "stream"]

M = TypeVar("M", bound="type[Model]")

_KINDS = {
    "BigIntegerField": ColumnKind.BIGINT,
    "IntegerField": ColumnKind.BIGINT,
    "SmallIntegerField": ColumnKind.BIGINT,
    "BooleanField": ColumnKind.BOOLEAN,
    "TextField": ColumnKind.TEXT,
    "CharField": ColumnKind.TEXT,
    "SlugField": ColumnKind.TEXT,
    "JSONField": ColumnKind.JSON,
    "ArrayField": ColumnKind.TEXT_ARRAY,
}


def stream(
    name: str,
    *columns: str,
    sample: Sample | None = None,
    caches: Mapping[str, KeyRule] | None = None,
    trimmable: bool = True,
) -> Callable[[M], M]:
    """Class decorator that declares the stream ``name``, whose facts are the rows of the model.

    ``columns`` are the columns that followers receive, in this order. The stream's IDs come from the sequence
    ``sequence_of(table)``, which a migration creates with ``CreateStreamSequence``. ``sample(number, thread)`` returns
    field values for ``manage.py append``. ``caches`` maps the name of a cached function (``streams.caching``) to the
    columns that are its key. A new row drops the value of that key in all processes. Set ``trimmable=False`` if the
    facts are not only a log of changes but the data itself.

    Raises ``TypeError`` for a column whose type has no wire form.
    """

    def declare(model: M) -> M:
        table = model._meta.db_table
        found = tuple(_column(model, column) for column in columns)
        facts = FactTable(table, found, id_column=getattr(model, "id_field", "stream_id"))
        declaration = StreamDeclaration(name, (facts,), sequence_of(table), trimmable=trimmable)
        return bind(declaration, sample=sample, caches=caches)(model)

    return declare


def sequence_of(table: str) -> str:
    """Returns the name of the sequence from which a one-class stream takes its IDs."""
    return f"{table}_stream_seq"


def _column(model: type[Model], name: str) -> Column:
    field = model._meta.get_field(name)
    kind = _KINDS.get(field.get_internal_type()) if isinstance(field, Field) else None
    if kind is None or not isinstance(field, Field):
        raise TypeError(
            f"{model.__name__}.{name} cannot be part of a stream's row: {type(field).__name__} has no form on the wire. "
            f"Use one of {', '.join(sorted(_KINDS))}, and turn other values into text."
        )
    return Column(str(field.column), kind, nullable=field.null)


class CreateStreamSequence(RunSQL):
    """Migration operation that creates the sequence of a one-class stream, for its table.

    The operation takes the first value itself. Position 1 means "empty", so the first fact gets ID 2.
    """

    def __init__(self, table: str) -> None:
        name = sequence_of(table)
        super().__init__(f'CREATE SEQUENCE "{name}"; SELECT nextval(\'"{name}"\');', f'DROP SEQUENCE "{name}";')
        self._table = table

    def deconstruct(self) -> tuple[str, list[str], dict[str, object]]:
        """Returns the operation's form in a migration file."""
        return type(self).__name__, [self._table], {}

    def describe(self) -> str:
        """Returns the description for the log of ``migrate``."""
        return f"Create the stream sequence of {self._table}"
