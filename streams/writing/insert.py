"""Inserts facts with one statement per table, without the ORM's work for each row.

This is twice as fast as ``bulk_create`` for a single row, and most appends have one row. Each field converts its value as
usual. A field that was not set gets the column's default. Assumes that the caller has a transaction open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from django.db.models import AutoField, Field
from django.db.models.expressions import DatabaseDefault

from streams.db.driver import Statement

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Model

__all__ = ["PLAIN_VALUES", "fields_to_fill", "insert_facts", "insert_statements"]

_MOST_ROWS = 1_000


@cache
def fields_to_fill(model: type[Model]) -> tuple[Field[Any, Any], ...]:
    """Returns the fields that an INSERT names: all concrete fields except automatic keys and generated columns."""
    return tuple(f for f in model._meta.concrete_fields if not isinstance(f, AutoField) and not f.generated)


@cache
def _head(model: type[Model]) -> str:
    columns = ", ".join(f'"{field.column}"' for field in fields_to_fill(model))
    return f'INSERT INTO "{model._meta.db_table}" ({columns}) VALUES '


def insert_facts(connection: BaseDatabaseWrapper, model: type[Model], facts: Sequence[Model]) -> None:
    """Inserts rows of one model, in statements of up to 1,000 rows.

    Primary keys that the database generates are not read back.
    """
    with connection.cursor() as cursor:
        for statement in insert_statements(connection, model, facts):
            cursor.execute(statement.text, statement.values)


def insert_statements(
    connection: BaseDatabaseWrapper, model: type[Model], facts: Sequence[Model]
) -> Iterator[Statement]:
    """Yields the statements of ``insert_facts``, for callers that send them together with other statements."""
    head = _head(model)
    for first in range(0, len(facts), _MOST_ROWS):
        rows: list[str] = []
        values: list[Any] = []
        for fact in facts[first : first + _MOST_ROWS]:
            rows.append(f"({', '.join(_places(fact, values, connection))})")
        yield Statement(head + ", ".join(rows), values, again=len(rows) == 1)


#: Types of fields and of values that are passed to the driver without conversion.
PLAIN_VALUES = {"TextField": str, "CharField": str, "BigIntegerField": int, "IntegerField": int, "BooleanField": bool}


@cache
def _conversions(model: type[Model]) -> tuple[tuple[str, Field[Any, Any], type | None], ...]:
    """Returns (attribute, field, type whose values need no conversion) for each column to fill."""
    return tuple((f.attname, f, PLAIN_VALUES.get(f.get_internal_type())) for f in fields_to_fill(model))


def _places(fact: Model, values: list[Any], connection: BaseDatabaseWrapper) -> Iterator[str]:
    """Yields one item of the VALUES list for each column: a placeholder, or DEFAULT for a field that was not set.

    Appends the values for the placeholders to ``values``.
    """
    for attribute, field, plain in _conversions(type(fact)):
        value = getattr(fact, attribute)
        if isinstance(value, DatabaseDefault):
            yield "DEFAULT"
        else:
            yield "%s"
            values.append(value if value is None or type(value) is plain else field.get_db_prep_save(value, connection))
