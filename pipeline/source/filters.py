"""Selects the filters of a Spark query that the source applies itself, and translates these filters to SQL.

This module is pure, except that it uses classes of pyspark.

Spark does not check an accepted filter again. So a filter is accepted only if PostgreSQL returns exactly the rows that
Spark would. For text, only filters for equality are accepted, because Spark and PostgreSQL both compare text for
equality byte by byte. Of filters on JSON columns and arrays, only checks for null are accepted. If a table does not
have a column, the column is null in all rows of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import datasource

from pipeline.source.literals import literal
from pipeline.source.stream_schemas import fact_columns
from streams.core.declaration import ColumnKind, FactTable, StreamDeclaration, quoted
from streams.core.queries import token_sql

__all__ = ["Condition", "accepted", "condition_sql", "tables_of", "token_range", "writers_of"]

_LARGEST = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARISONS = {
    datasource.EqualTo: "=",
    datasource.EqualNullSafe: "=",
    datasource.GreaterThan: ">",
    datasource.GreaterThanOrEqual: ">=",
    datasource.LessThan: "<",
    datasource.LessThanOrEqual: "<=",
}
_NUMBERS = frozenset({"=", "in", "<", "<=", ">", ">=", "null", "not null"})
_EQUALITY = frozenset({"=", "in", "null", "not null"})
_PRESENCE = frozenset({"null", "not null"})
_ALLOWED = {
    ColumnKind.BIGINT: (int, _NUMBERS),
    ColumnKind.TEXT: (str, _EQUALITY),
    ColumnKind.JSON_TEXT: (str, _EQUALITY),
    ColumnKind.BOOLEAN: (bool, _EQUALITY),
    ColumnKind.JSON: (str, _PRESENCE),
    ColumnKind.TEXT_ARRAY: (str, _PRESENCE),
}
_OTHERS = (str, _PRESENCE)  # their text in Spark is not the value that PostgreSQL compares
_COMMON = {
    "fact_table": ColumnKind.TEXT,
    "token": ColumnKind.BIGINT,
    "writer": ColumnKind.TEXT,
    "received_at_ms": ColumnKind.BIGINT,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """An accepted filter ``column operator values``.

    The operator ``in`` has any number of values. ``null`` and ``not null`` have no value. All other operators have one
    value.
    """

    column: str
    operator: str
    values: tuple[Any, ...] = ()


def accepted(
    filters: Iterable[datasource.Filter], declaration: StreamDeclaration
) -> tuple[list[Condition], list[datasource.Filter]]:
    """Returns (conditions that the source applies, filters that Spark must apply itself)."""
    kinds = {**fact_columns(declaration), **_COMMON}
    applied: list[Condition] = []
    left: list[datasource.Filter] = []
    for given in filters:
        condition = _condition(given)
        if condition is not None and _is_sound(condition, kinds):
            applied.append(condition)
        else:
            left.append(given)
    return applied, left


def _condition(given: datasource.Filter) -> Condition | None:
    path: Sequence[str] = getattr(given, "attribute", ())
    if len(path) != 1:
        return None
    if isinstance(given, datasource.IsNull | datasource.IsNotNull):
        return Condition(path[0], "null" if isinstance(given, datasource.IsNull) else "not null")
    if isinstance(given, datasource.In):
        # NULL in the list makes IN unknown instead of false; as a filter both drop the row.
        return Condition(path[0], "in", tuple(value for value in given.value if value is not None))
    operator = _COMPARISONS.get(type(given))
    if operator is None:
        return None
    value: Any = getattr(given, "value", None)
    if value is None:
        return Condition(path[0], "null") if isinstance(given, datasource.EqualNullSafe) else None
    return Condition(path[0], operator, (value,))


def _is_sound(condition: Condition, kinds: Mapping[str, ColumnKind]) -> bool:
    kind = kinds.get(condition.column)
    if kind is None:
        return False
    type_, operators = _ALLOWED.get(kind, _OTHERS)
    return condition.operator in operators and all(_is_plain(value, type_) for value in condition.values)


def _is_plain(value: Any, type_: type) -> bool:
    if type(value) is not type_:
        return False
    if isinstance(value, str):  # PostgreSQL's text has neither NUL nor lone surrogates
        return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)
    return not isinstance(value, int) or abs(value) <= _LARGEST


# --- pruning before rows are read ---------------------------------------------------------------------------------


def token_range(conditions: Iterable[Condition]) -> tuple[int | None, int | None]:
    """Returns the bounds ``(after, upto)`` that the conditions set for tokens: ``after < token <= upto``.

    A bound is None if no condition sets it.
    """
    after: int | None = None
    upto: int | None = None
    for condition in conditions:
        if condition.column != "token" or not condition.values:
            continue
        least, most = min(condition.values), max(condition.values)
        if condition.operator in ("=", "in", ">", ">="):
            first = least if condition.operator == ">" else least - 1
            after = first if after is None else max(after, first)
        if condition.operator in ("=", "in", "<", "<="):
            last = most - 1 if condition.operator == "<" else most
            upto = last if upto is None else min(upto, last)
    return after, upto


def writers_of(conditions: Iterable[Condition], writers: Iterable[str]) -> set[str]:
    """Returns the members of ``writers`` whose facts can pass the conditions."""
    return {writer for writer in writers if _passes(conditions, "writer", writer)}


def tables_of(conditions: Iterable[Condition], declaration: StreamDeclaration) -> list[FactTable]:
    """Returns the tables of the stream whose rows can pass the conditions."""
    return [table for table in declaration.tables if _passes(conditions, "fact_table", table.name)]


def _passes(conditions: Iterable[Condition], column: str, value: str) -> bool:
    """Returns true if rows with ``value`` in the column ``column`` can pass the conditions.

    The column must never be null. All conditions on this column must be checks for equality or for null.
    """
    on_column = [condition for condition in conditions if condition.column == column]
    return all(condition.operator == "not null" or value in condition.values for condition in on_column)


# --- SQL ----------------------------------------------------------------------------------------------------------


def condition_sql(condition: Condition, declaration: StreamDeclaration, table: FactTable) -> str:
    """Translates a condition to an SQL expression for a row of the table."""
    places: dict[str, str] = {
        "fact_table": literal(table.name),
        "token": token_sql(declaration, table),
        "writer": quoted(table.writer_column),
        "received_at_ms": quoted(table.received_column),
        **{column.key: quoted(column.name) for column in table.stored},
    }
    place = places.get(condition.column)
    if place is None:
        return "true" if condition.operator == "null" else "false"
    if condition.operator in ("null", "not null"):
        return f"{place} IS {condition.operator.upper()}"
    if condition.column == "received_at_ms":
        alternatives = [_moment_sql(place, condition.operator, value) for value in condition.values]
        return f"({' OR '.join(alternatives)})" if alternatives else "false"
    if condition.operator == "in":
        return f"{place} IN ({', '.join(map(literal, condition.values))})" if condition.values else "false"
    return f"{place} {condition.operator} {literal(condition.values[0])}"


def _moment_sql(place: str, operator: str, milliseconds: int) -> str:
    """Returns an SQL condition that compares the timestamp column ``place``, rounded down to milliseconds."""
    from_here, from_next = _moment(milliseconds), _moment(milliseconds + 1)
    return {
        ">=": f"{place} >= {from_here}",
        ">": f"{place} >= {from_next}",
        "<": f"{place} < {from_here}",
        "<=": f"{place} < {from_next}",
    }.get(operator, f"({place} >= {from_here} AND {place} < {from_next})")


def _moment(milliseconds: int) -> str:
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:  # a year that Python cannot express; no row was received then
        return "'infinity'::timestamptz" if milliseconds > 0 else "'-infinity'::timestamptz"
    return f"'{moment.isoformat()}'::timestamptz"
