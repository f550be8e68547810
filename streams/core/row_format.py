"""Formats of wire rows, each written once and used twice: by Python, and as SQL text (pure).

A format says which columns stand where in the JSON array of an RDATA line. Python builds the row from the values of a
table row. PostgreSQL can write the row's JSON text itself, which costs the broadcaster nothing per row. Both are made
from one description, so they cannot diverge. ``tests/integration/test_line_sql.py`` compares them.

The SQL text is compact JSON in which non-ASCII characters are not escaped. The sender must escape them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streams.core.declaration import Column, FactTable

__all__ = ["IsSet", "Literal", "RowFormat", "Value", "row_sql"]


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a column."""

    column: str


@dataclass(frozen=True, slots=True)
class IsSet:
    """A boolean: true if the column is not null."""

    column: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant text in every row. ASCII without quotes, percent signs and backslashes."""

    text: str


Part = Value | IsSet | Literal | tuple["Part", ...]


class RowFormat:
    """The format of a row over a table's columns. Called with their values, in order, it returns the row.

    Strings in ``parts`` are columns, and a nested tuple is a nested array. Raises ``ValueError`` for an unknown column or
    a literal with forbidden characters.
    """

    def __init__(self, columns: Sequence[Column], *parts: Any) -> None:
        self._columns = {column.name: column for column in columns}
        places = {name: place for place, name in enumerate(self._columns)}
        self._parts = tuple(_part(part, self._columns) for part in parts)
        decoded = {column.name for column in columns if column.kind == "json text"}
        self._build = _builder(self._parts, places, decoded)

    def __call__(self, values: Sequence[Any]) -> Any:
        """Returns the row, from the values of the columns."""
        return self._build(values)

    def sql(self) -> str | None:
        """Returns an expression for the row's JSON text, or None if a column's text in the database is not that of the wire."""
        return _array_sql(self._parts, self._columns)


def row_sql(table: FactTable) -> str | None:
    """Returns the expression for the JSON text of a table's row, or None if only Python can build it."""
    if isinstance(table.row, RowFormat):
        return table.row.sql()
    if table.row is list:
        return RowFormat(table.columns, *(column.name for column in table.columns)).sql()
    return None


def _part(given: Any, columns: dict[str, Column]) -> Part:
    if isinstance(given, tuple):
        return tuple(_part(part, columns) for part in given)
    if isinstance(given, Literal):
        if not given.text.isascii() or not given.text.isprintable() or {'"', "\\", "'", "%"} & set(given.text):
            raise ValueError(
                f"{given.text!r} cannot be a literal of a row: use ASCII without quotes, percent and backslashes."
            )
        return given
    part = Value(given) if isinstance(given, str) else given
    if part.column not in columns:
        raise ValueError(f"The row names column {part.column!r}, which the table does not read: {', '.join(columns)}.")
    return part


def _builder(
    parts: tuple[Part, ...], places: dict[str, int], decoded: Collection[str]
) -> Callable[[Sequence[Any]], Any]:
    makers = [_maker(part, places, decoded) for part in parts]
    return lambda values: [make(values) for make in makers]


def _maker(part: Part, places: dict[str, int], decoded: Collection[str]) -> Callable[[Sequence[Any]], Any]:
    match part:
        case Value(column) if column in decoded:
            place = places[column]
            return lambda values: None if values[place] is None else json.loads(values[place])
        case Value(column):
            place = places[column]
            return lambda values: values[place]
        case IsSet(column):
            place = places[column]
            return lambda values: values[place] is not None
        case Literal(text):
            return lambda values: text
        case _:
            return _builder(part, places, decoded)


def _array_sql(parts: tuple[Part, ...], columns: dict[str, Column]) -> str | None:
    texts = [_part_sql(part, columns) for part in parts]
    if None in texts:
        return None
    return "'[' || " + " || ',' || ".join(text for text in texts if text is not None) + " || ']'" if texts else "'[]'"


def _part_sql(part: Part, columns: dict[str, Column]) -> str | None:
    match part:
        case Value(name):
            return _value_sql(columns[name])
        case IsSet(name):
            return f"CASE WHEN {name} IS NULL THEN 'false' ELSE 'true' END"
        case Literal(text):
            return f"'\"{text}\"'"
        case _:
            return _array_sql(part, columns)


def _value_sql(column: Column) -> str | None:
    """Returns the expression for the JSON text of a column, or None for a JSON column: its text may hold blanks."""
    text = {
        "text": f"to_json({column.name})::text",
        "text[]": f"to_json({column.name})::text",
        "bigint": f"{column.name}::text",
        "boolean": f"{column.name}::text",
        "json text": column.name,
    }.get(column.kind)
    return text and f"coalesce({text}, 'null')"
