"""Inserts facts with one statement per table, without the ORM's work for each row.

For a single row, one such statement is twice as fast as ``bulk_create``, and most appends have one row. Each field
converts its value as in an insert by Django. A field that was not set gets the column's default. Assumes that the
caller has a transaction open.

A trigger, a rule or a policy of the table may drop rows or change their IDs. Then the statement itself fails, so that
nothing of its transaction is committed (``IF_STORED``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import AutoField, Field
from django.db.models.expressions import DatabaseDefault

from streams.core.declaration import quoted
from streams.core.json_codec import MOST_VALUE_DEPTH, is_deeper
from streams.db.driver import Statement
from streams.errors import UnusableFact

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Model

    from streams.facts import Fact

_MOST_ROWS = 1_000
#: A SQL expression: the value ``value`` if the condition ``stored`` is true, else an error of the server. ``{found}`` is what
#: was found instead, a SQL expression of type text. The server must not be able to work it out before it has inserted.
IF_STORED = (
    "CASE WHEN {stored} THEN {value} ELSE ({found} || ' rows are stored as they were given: a trigger, a rule or a policy of "
    "the table drops or changes rows')::bigint END"
)


@cache
def fields_to_fill(model: type[Model]) -> tuple[Field[Any, Any], ...]:
    return tuple(f for f in model._meta.concrete_fields if not isinstance(f, AutoField) and not f.generated)


@cache
def _parts(model: type[Model]) -> tuple[str, str]:
    """Returns the two texts of an INSERT statement for the model: the text before the list of rows, and the text after it.

    The parameters of the second text are, in order: the least and the largest ID, the writer, and the number of rows.
    """
    columns_by_attribute = {field.attname: quoted(str(field.column)) for field in fields_to_fill(model)}
    columns = ", ".join(columns_by_attribute.values())
    id_column, writer = columns_by_attribute[cast("type[Fact]", model).id_field], columns_by_attribute["instance_name"]
    count = "count(*) FILTER (WHERE id BETWEEN %s AND %s AND writer = %s)"
    return (
        f"WITH stored AS (INSERT INTO {quoted(model._meta.db_table)} ({columns}) VALUES ",
        f" RETURNING {id_column} AS id, {writer} AS writer) SELECT "
        + IF_STORED.format(stored="found = wanted", value="found", found="found || ' of ' || wanted")
        + f" FROM (SELECT {count} AS found, %s::bigint AS wanted FROM stored) AS counted",
    )


def insert_facts(connection: BaseDatabaseWrapper, model: type[Model], facts: Sequence[Fact]) -> None:
    """Inserts rows of one model, in statements of up to 1,000 rows.

    Primary keys that the database generates are not read back.
    """
    with connection.cursor() as cursor:
        for statement in insert_statements(connection, model, facts):
            cursor.execute(statement.text, statement.values)


def insert_statements(
    connection: BaseDatabaseWrapper, model: type[Model], facts: Sequence[Fact]
) -> Iterator[Statement]:
    """Yields the statements of ``insert_facts``, for callers that send them together with other statements."""
    head, tail = _parts(model)
    for first in range(0, len(facts), _MOST_ROWS):
        rows: list[str] = []
        values: list[Any] = []
        part = facts[first : first + _MOST_ROWS]
        for fact in part:
            rows.append(f"({', '.join(_places(fact, values, connection))})")
        ids = [getattr(fact, fact.id_field) for fact in part]
        values += [min(ids), max(ids), part[0].instance_name, len(part)]
        yield Statement(f"{head}{', '.join(rows)}{tail}", values, again=len(rows) == 1)


_PLAIN_VALUES = {"TextField": str, "CharField": str, "BigIntegerField": int, "IntegerField": int, "BooleanField": bool}
_CONVERSIONS = ("get_db_prep_save", "get_db_prep_value", "get_prep_value")


def plain_type(field: Field[Any, Any]) -> type | None:
    """Returns the type of the values that the field passes to the driver unchanged, or None if it converts all values.

    Also returns None for a field class of the user's project that converts values which Django's field passes on unchanged.
    """
    kind = field.get_internal_type()
    of_django = getattr(models, kind, None) if kind in _PLAIN_VALUES else None
    converts = any(getattr(type(field), name) is not getattr(of_django, name) for name in _CONVERSIONS if of_django)
    return None if of_django is None or converts else _PLAIN_VALUES[kind]


def plain_item_type(field: Field[Any, Any]) -> type | None:
    """Returns the item type of the lists that the field passes to the driver unchanged, or None if it converts all lists."""
    return plain_type(field.base_field) if type(field) is ArrayField else None


def converted(field: Field[Any, Any], value: Any, connection: BaseDatabaseWrapper) -> Any:
    """Returns a value of the field in the form that the driver needs.

    Raises ``UnusableFact`` for JSON that readers could not decode, and for an expression: a fact has the values that it has.
    """
    is_json = getattr(field, "base_field", field).get_internal_type() == "JSONField"
    if is_json and is_deeper(value, MOST_VALUE_DEPTH):
        raise UnusableFact(f"{field.model.__name__}.{field.name} is nested deeper than {MOST_VALUE_DEPTH} levels.")
    found = field.get_db_prep_save(value, connection)
    if hasattr(found, "resolve_expression"):
        raise UnusableFact(
            f"{field.model.__name__}.{field.name} was given an expression of SQL ({found!r}). Give a value, or declare "
            f"db_default= and leave the field out."
        )
    return found


@cache
def _conversions(
    model: type[Model],
) -> tuple[Callable[[Model], tuple[Any, ...]], tuple[tuple[Field[Any, Any], type | None], ...]]:
    """Returns a function that returns the values of all columns to fill, and (field, type that needs no conversion) of each."""
    fields = fields_to_fill(model)
    return attrgetter(*(f.attname for f in fields)), tuple((f, plain_type(f)) for f in fields)


def _places(fact: Model, values: list[Any], connection: BaseDatabaseWrapper) -> list[str]:
    """Returns one item of the VALUES list for each column: a placeholder, or DEFAULT for a field that was not set.

    Appends the values for the placeholders to ``values``.
    """
    values_of, columns = _conversions(type(fact))
    places = []
    for value, (field, plain) in zip(values_of(fact), columns, strict=True):
        if isinstance(value, DatabaseDefault):
            places.append("DEFAULT")
        else:
            places.append("%s")
            values.append(value if value is None or type(value) is plain else converted(field, value, connection))
    return places
