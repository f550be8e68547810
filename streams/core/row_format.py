"""Formats of the rows that are sent (pure). The Python code and the SQL of a format follow from one description.

A format defines the place of each column in the JSON array of an RDATA command. Python builds the row from the values
of a table row. PostgreSQL can instead write the JSON text of the row, which saves the replication server that work. The
Python code and the SQL cannot diverge, because both follow from the same description.
``tests/integration/streams/test_line_sql.py`` compares them.

PostgreSQL writes compact JSON, but does not escape non-ASCII characters. The sender must escape them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streams.core.declaration import quoted
from streams.core.json_codec import decode_stored_json
from streams.core.named_rows import NamedRow, is_compact, object_sql

if TYPE_CHECKING:
    from streams.core.declaration import Column, FactTable


@dataclass(frozen=True, slots=True)
class Value:
    """A part of a row format: the value of a column."""

    column: str


@dataclass(frozen=True, slots=True)
class IsSet:
    """A part of a row format: true if the column is not null, else false."""

    column: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A text that is the same in every row. It must be ASCII without quotes, percent signs and backslashes."""

    text: str


Part = Value | IsSet | Literal | tuple["Part", ...]


class RowFormat:
    """The format of a row, built from a table's columns. Call it with the columns' values, in order, to get the row.

    ``parts`` are the elements of the row's array: a string is the name of a column, and a tuple is a nested array. Raises
    ``ValueError`` for an unknown column or a literal with forbidden characters.
    """

    def __init__(self, columns: Sequence[Column], *parts: Any) -> None:
        self._columns = {column.name: column for column in columns}
        places = {name: place for place, name in enumerate(self._columns)}
        self._parts = tuple(_part(part, self._columns) for part in parts)
        decoded = {column.name for column in columns if column.kind == "json text"}
        self._build = _builder(self._parts, places, decoded)

    def __call__(self, values: Sequence[Any]) -> Any:
        """Builds the row from the values of the columns."""
        return self._build(values)

    def places(self) -> dict[str, int]:
        return {part.column: place for place, part in enumerate(self._parts) if isinstance(part, Value)}

    def sql(self) -> str | None:
        """Returns the SQL expression for the row's JSON text.

        Returns None if PostgreSQL cannot write the text in the form that is sent.
        """
        return _array_sql(self._parts, self._columns)


def row_sql(table: FactTable) -> str | None:
    """Returns the SQL expression for the JSON text of a table's row, or None if only Python can build the row."""
    if isinstance(table.row, NamedRow):
        return object_sql(table) if is_compact(table) else None
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
            return lambda values: None if values[place] is None else decode_stored_json(values[place])
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
            return f"CASE WHEN {quoted(name)} IS NULL THEN 'false' ELSE 'true' END"
        case Literal(text):
            return f"'\"{text}\"'"
        case _:
            return _array_sql(part, columns)


def _value_sql(column: Column) -> str | None:
    """Returns the SQL expression for the JSON text of a column.

    Returns None for a JSON column, whose text may hold blanks, and for a column of JSON text. A writer in SQL may have
    stored anything there, also what ends the line of its fact and begins lines of other streams. So Python decodes it.
    """
    name = quoted(column.name)
    text = {
        "text": f"to_json({name})::text",
        "text[]": f"array_to_json({name})::text",  # what to_json calls, once it has found out the type
        "bigint": f"{name}::text",
        "boolean": f"{name}::text",
    }.get(column.kind)
    return text and f"coalesce({text}, 'null')"
