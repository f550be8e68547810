"""Inserts facts with one statement per table, without the ORM's work for each row.

For a single row, one such statement is twice as fast as ``bulk_create``, and most appends have one row. Each field
converts its value as in an insert by Django. A field that was not set gets the column's default. Assumes that the
caller has a transaction open.

A trigger, a rule or a policy of the table may drop rows or change their IDs. Then the statement itself fails, so that
nothing of its transaction is committed (``IF_STORED``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from django.contrib.postgres.fields import ArrayField
from django.db import connections, models
from django.db.models import AutoField, Field
from django.db.models.expressions import DatabaseDefault

from streams.conf import stream_settings
from streams.core.declaration import quoted
from streams.core.json_codec import MOST_VALUE_DEPTH, is_deeper
from streams.db.driver import Statement, is_repeated, send_together
from streams.errors import UnusableFact

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Model

    from streams.facts import Fact

_MOST_ROWS = 1_000
_LENGTHS = re.compile(r"\(\s*\d+(\s*,\s*\d+)*\s*\)")
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
def _parts(model: type[Model], left_out: tuple[int, ...] = ()) -> tuple[str, str]:
    """Returns the two texts of an INSERT statement for the model: the text before the rows, and the text after them.

    ``left_out`` are the numbers of columns that get their defaults. The parameters of the second text are, in order: the least
    and the largest ID, the writer, and the number of rows.
    """
    columns_by_attribute = {field.attname: quoted(str(field.column)) for field in fields_to_fill(model)}
    columns = ", ".join(name for n, name in enumerate(columns_by_attribute.values()) if n not in left_out)
    id_column, writer = columns_by_attribute[cast("type[Fact]", model).id_field], columns_by_attribute["instance_name"]
    count = "count(*) FILTER (WHERE id BETWEEN %s AND %s AND writer = %s)"
    return (
        f"WITH stored AS (INSERT INTO {quoted(model._meta.db_table)} ({columns}) ",
        f" RETURNING {id_column} AS id, {writer} AS writer) SELECT "
        + IF_STORED.format(stored="found = wanted", value="found", found="found || ' of ' || wanted")
        + f" FROM (SELECT {count} AS found, %s::bigint AS wanted FROM stored) AS counted",
    )


def insert_facts(connection: BaseDatabaseWrapper, model: type[Model], facts: Sequence[Fact]) -> None:
    """Inserts rows of one model, in statements of up to 1,000 rows.

    Primary keys that the database generates are not read back.
    """
    for statement in insert_statements(connection, model, facts):
        send_together(connection, [statement._replace(again=is_repeated(connection, statement.text))])


def insert_statements(
    connection: BaseDatabaseWrapper, model: type[Model], facts: Sequence[Fact]
) -> Iterator[Statement]:
    """Yields the statements of ``insert_facts``, for callers that send them together with other statements."""
    head, tail = _parts(model)
    for first in range(0, len(facts), _MOST_ROWS):
        part = facts[first : first + _MOST_ROWS]
        ids = [getattr(fact, fact.id_field) for fact in part]
        counted = [min(ids), max(ids), part[0].instance_name, len(part)]
        if len(part) > 1 and (arrays := _arrays(model, part, connection)) is not None:
            text, places, values = arrays
            yield Statement(text, values + counted, places=[*places, *["%s"] * len(counted)])
            continue
        rows, values = [], []
        for fact in part:
            rows.append(f"({', '.join(_places(fact, values, connection))})")
        yield Statement(f"{head}VALUES {', '.join(rows)}{tail}", values + counted, again=len(rows) == 1)


def _arrays(
    model: type[Model], facts: Sequence[Fact], connection: BaseDatabaseWrapper
) -> tuple[str, list[str], list[Any]] | None:
    """Returns a statement with an array for each column, the SQL of the arrays, and the values for their placeholders.

    Returns None if some of the facts have a value where others leave the column to its default.
    """
    values_of, columns = _conversions(model)
    left_out: list[int] = []
    places: list[str] = []
    sent: list[Any] = []
    for number, (column, values) in enumerate(zip(columns, zip(*map(values_of, facts), strict=True), strict=True)):
        kinds = {*map(type, values)}
        if kinds == {DatabaseDefault}:
            left_out.append(number)
            continue
        if DatabaseDefault in kinds:
            return None
        # For a missing array ``unnest`` returns as many nulls as the others have values.
        place, found = ("%s", [None]) if kinds == {type(None)} else column.several(values, kinds, connection)
        places.append(place)
        sent += found
    return _of_arrays(model, tuple(left_out)), places, sent


@cache
def _of_arrays(model: type[Model], left_out: tuple[int, ...]) -> str:
    head, tail = _parts(model, left_out)
    columns = [column for n, column in enumerate(columns_to_fill(model)) if n not in left_out]
    arrays = ", ".join(f"CAST(%s AS {column.type_of_several})" for column in columns)
    names = ", ".join(f"c{n}" for n in range(len(columns)))
    shown = (f"CAST(c{n} AS {column.sql_type})" if column.is_array else f"c{n}" for n, column in enumerate(columns))
    return f"{head}SELECT {', '.join(shown)} FROM unnest({arrays}) AS given ({names}){tail}"


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


@dataclass(frozen=True, slots=True)
class Column:
    """A column that an insert fills.

    Values have a cast, because PostgreSQL does not infer the types of a SELECT from the table. The cast is written as
    ``CAST``. A ``::`` binds closer than the sign of a number, so the least smallint would be out of range.
    """

    attribute: str
    field: Field[Any, Any]
    sql_type: str
    plain: type | None
    """Values of this type need no conversion."""
    plain_items: type | None
    """Lists of values of this type need no conversion."""

    @property
    def is_array(self) -> bool:
        """True if the column's values are arrays.

        The arrays of several facts are sent as text, because PostgreSQL's array of arrays needs arrays of one length.
        """
        return self.sql_type.endswith("]")

    @property
    def type_of_several(self) -> str:
        return "text[]" if self.is_array else f"{self.sql_type}[]"

    def converted(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        """Returns a value of the column in the form that the driver needs."""
        if value is None or type(value) is self.plain:
            return value
        if self.plain_items is not None and type(value) is list and {*map(type, value)} <= {self.plain_items}:
            return value
        return converted(self.field, value, connection)

    def several(
        self, values: Sequence[Any], kinds: set[type], connection: BaseDatabaseWrapper
    ) -> tuple[str, list[Any]]:
        """Returns the SQL of an array of this column's values of several facts, and the values for its placeholders.

        ``kinds`` are the Python types of the values. If no value needs a conversion, the driver gets the whole array as
        one value. That saves time, because the driver needs time for each value.
        """
        if kinds == {self.plain}:
            return "%s", [_array(values)]
        items = self.plain_items
        if items is not None and kinds == {list} and {*map(type, chain.from_iterable(values))} <= {items}:
            return "%s", [_array([_array(value) for value in values])]
        place = f"CAST(CAST(%s AS {self.sql_type}) AS text)" if self.is_array else "%s"
        places = ", ".join([place] * len(values))
        return f"CAST(ARRAY[{places}] AS {self.type_of_several})", [self.converted(v, connection) for v in values]


def _array(values: Sequence[Any]) -> str:
    # No NULL among the values: a setting of the server (``array_nulls``) may turn a NULL into a text.
    if not values or type(values[0]) is not str:
        return f"{{{','.join(map(str, values))}}}"
    joined = '","'.join(values)
    if "\\" in joined or joined.count('"') > 2 * (len(values) - 1):
        joined = '","'.join([value.replace("\\", "\\\\").replace('"', '\\"') for value in values])
    return f'{{"{joined}"}}'


def _type(field: Field[Any, Any]) -> str:
    # A cast to ``varchar(5)`` would silently shorten a longer value. Without the length in the cast, the column raises
    # an error.
    declared = field.db_type(connections[stream_settings().database]) or "text"
    bare = _LENGTHS.sub("", declared)
    return re.sub(r"^char\b", "bpchar", bare)


@cache
def columns_to_fill(model: type[Model]) -> tuple[Column, ...]:
    return tuple(
        Column(field.attname, field, _type(field), plain_type(field), plain_item_type(field))
        for field in fields_to_fill(model)
    )


@cache
def _conversions(model: type[Model]) -> tuple[Callable[[Model], tuple[Any, ...]], tuple[Column, ...]]:
    """Returns a function that returns the values of all columns to fill, and the columns."""
    columns = columns_to_fill(model)
    return attrgetter(*(column.attribute for column in columns)), columns


def _places(fact: Model, values: list[Any], connection: BaseDatabaseWrapper) -> list[str]:
    """Returns one item of the VALUES list for each column: a placeholder, or DEFAULT for a field that was not set.

    Appends the values for the placeholders to ``values``.
    """
    values_of, columns = _conversions(type(fact))
    places = []
    for value, column in zip(values_of(fact), columns, strict=True):
        if isinstance(value, DatabaseDefault):
            places.append("DEFAULT")
        else:
            places.append("%s")
            values.append(column.converted(value, connection))
    return places
