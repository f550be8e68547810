"""Rows that are JSON objects by field name, with the version of the stream's row (pure).

    {"order_id": "4711", "total": "12.50", "customer": 17, "@version": 2}

PostgreSQL writes the whole object as one text (``object_sql``). So the form of the text depends neither on the driver
nor on the settings of a connection. ``from_json`` turns a value of the object into the value that Django's field has.
Decimal numbers, times, durations, UUIDs, addresses and bytes are texts. All other values are JSON's own.

A row of another version is brought to the version of this program by ``Upcasts``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import inf, isfinite
from typing import TYPE_CHECKING, Any
from uuid import UUID

from streams.core.declaration import ColumnKind, quoted
from streams.core.json_codec import decode_json, decode_stored_object
from streams.errors import UnknownVersion

if TYPE_CHECKING:
    from streams.core.declaration import Column, FactTable

#: The name under which the version is in the row. No field can have it.
VERSION = "@version"


@dataclass(frozen=True, slots=True)
class NamedRow:
    """The format of rows that are JSON objects, as the attribute ``row`` of a ``FactTable``.

    Call it with a list whose only element is the JSON text of ``object_sql``. It returns the object.
    """

    version: int = 1

    def __call__(self, values: Sequence[Any]) -> Any:
        """Returns the object whose JSON text is ``values[0]``."""
        return decode_stored_object(values[0])


def places_of(table: FactTable) -> dict[str, Any]:
    """Returns the place of each column's value in the row: a key of the JSON object, or an index of the list.

    The result is empty for a table whose rows have another form.
    """
    if isinstance(table.row, NamedRow):
        return {name: column.key for column in table.columns for name in (column.key, column.name)}
    if (places := getattr(table.row, "places", None)) is not None:  # a ``streams.core.row_format.RowFormat``
        found: dict[str, Any] = places()
        return found
    return {column.name: place for place, column in enumerate(table.columns)} if table.row is list else {}


# --- SQL ----------------------------------------------------------------------------------------------------------


def object_sql(table: FactTable) -> str:
    """Returns the SQL expression for the JSON text of a table's row."""
    if not isinstance(table.row, NamedRow):
        raise TypeError(f"The rows of table {table.name} are no JSON objects.")
    members = "".join(
        f"""'{"," if place else ""}"{column.key}":' || coalesce({json_sql(column)}, 'null') || """
        for place, column in enumerate(table.columns)
    )
    opening = "'{' || " if members else ""
    return f"""{opening}{members}'{"," if members else "{"}"{VERSION}":{table.row.version}}}'"""


def is_compact(table: FactTable) -> bool:
    """Returns true if the text of ``object_sql`` has no blanks between values.

    PostgreSQL's text of ``jsonb`` has such blanks.
    """
    return not any(ColumnKind.JSON in (column.kind, column.item) for column in table.columns)


def text_sql(column: Column) -> str | None:
    """Returns the SQL expression for the text of a value whose form in JSON is a text, or None for other values."""
    return _text_of(quoted(column.name), column.kind)


def _text_of(value: str, kind: ColumnKind) -> str | None:
    seconds = f"extract(epoch FROM {value})"
    return {
        ColumnKind.DECIMAL: f"{value}::text",
        ColumnKind.DATETIME: _day_text(f"{value} AT TIME ZONE 'UTC'", 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        ColumnKind.DATE: _day_text(value, "YYYY-MM-DD"),
        ColumnKind.TIME: f"to_char({value}, 'HH24:MI:SS.US')",
        ColumnKind.DURATION: f"CASE WHEN {seconds} < 0 THEN '-PT' ELSE 'PT' END || abs({seconds})::text || 'S'",
        ColumnKind.UUID: f"{value}::text",
        ColumnKind.BINARY: f"translate(encode({value}, 'base64'), E'\\n', '')",
        ColumnKind.ADDRESS: f"host({value})",
    }.get(kind)


def _day_text(value: str, form: str) -> str:
    # Without its era, a day before the year 1 is one of many centuries later, and no reader could tell.
    return f"to_char({value}, CASE WHEN {value} < '0001-01-01' THEN '{form} BC' ELSE '{form}' END)"


def json_sql(column: Column) -> str:
    """Returns the SQL expression for the JSON text of a value. The expression yields NULL if the value is null."""
    value = quoted(column.name)
    if column.kind is ColumnKind.ARRAY and column.item is not None:
        if (element := _text_of("item", column.item)) is None:
            return f"array_to_json({value})::text"
        items = f"SELECT {element} FROM unnest({value}) WITH ORDINALITY AS given (item, place) ORDER BY place"
        return f"CASE WHEN {value} IS NOT NULL THEN to_json(ARRAY({items}))::text END"
    if column.kind in (ColumnKind.BIGINT, ColumnKind.BOOLEAN, ColumnKind.JSON):
        return f"{value}::text"
    if column.kind is ColumnKind.JSON_TEXT:
        return value
    if column.kind is ColumnKind.TEXT_ARRAY:
        return f"array_to_json({value})::text"  # what to_json calls, once it has found out the type
    return f"to_json({_text_of(value, column.kind) or value})::text"


# --- values -------------------------------------------------------------------------------------------------------


def _duration(text: str) -> timedelta:
    sign = -1 if text.startswith("-") else 1
    # Converted by way of Decimal, because a float would round long durations.
    return sign * timedelta(microseconds=int(Decimal(text.lstrip("-")[2:-1]) * 1_000_000))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


_VALUES: Mapping[ColumnKind, Callable[[Any], Any]] = {
    ColumnKind.DECIMAL: Decimal,
    ColumnKind.FLOAT: float,
    ColumnKind.DATETIME: _moment,
    ColumnKind.DATE: date.fromisoformat,
    ColumnKind.TIME: time.fromisoformat,
    ColumnKind.DURATION: _duration,
    ColumnKind.UUID: UUID,
    ColumnKind.BINARY: base64.b64decode,
}


def from_json(column: Column, value: Any) -> Any:
    """Converts a column's value in a JSON row to a Python value.

    The result is the value that Django's field would load from the database. Times are in UTC. A value that Python has
    not, such as the year 10000, which only SQL can store, is None: one such fact must not keep readers from all others.
    """
    try:
        return _converted(column, value, _VALUES)
    except (ValueError, ArithmeticError):
        return None


def _converted(column: Column, value: Any, functions: Mapping[ColumnKind, Callable[[Any], Any]]) -> Any:
    if value is None:
        return None
    if column.kind is ColumnKind.ARRAY and column.item is not None:
        return _elements(value, functions.get(column.item))
    make = functions.get(column.kind)
    return value if make is None else make(value)


def _elements(values: Iterable[Any], make: Callable[[Any], Any] | None) -> list[Any]:
    return [
        value if value is None or make is None else _elements(value, make) if isinstance(value, list) else make(value)
        for value in values
    ]


def _duration_text(value: timedelta) -> str:
    whole, fraction = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
    return f"{'-' if value < timedelta() else ''}PT{whole}.{fraction:06}S"


def _decimal_text(value: Decimal) -> str:
    return format(value, "f") if value.is_finite() else str(value)


def _float(value: float) -> float | str:
    return value if isfinite(value) else {inf: "Infinity", -inf: "-Infinity"}.get(value, "NaN")


_IN_JSON: Mapping[ColumnKind, Callable[[Any], Any]] = {
    ColumnKind.JSON_TEXT: decode_json,
    ColumnKind.DECIMAL: _decimal_text,
    ColumnKind.FLOAT: _float,
    ColumnKind.DATETIME: lambda value: value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
    ColumnKind.DATE: date.isoformat,
    ColumnKind.TIME: lambda value: value.isoformat(timespec="microseconds"),
    ColumnKind.DURATION: _duration_text,
    ColumnKind.UUID: str,
    ColumnKind.BINARY: lambda value: base64.b64encode(value).decode(),
    ColumnKind.ADDRESS: str,
}


def to_json(column: Column, value: Any) -> Any:
    """Converts a column's Python value to its value in a JSON row. The inverse of ``from_json``."""
    return _converted(column, value, _IN_JSON)


# --- versions -----------------------------------------------------------------------------------------------------

#: A function from the row of one version to the row of the next one.
Upcast = Callable[[Any], Mapping[str, Any]]


class Upcasts:
    """The functions that turn rows of older versions of one stream into rows of newer versions.

    ``functions`` maps a version to the function that takes a row of this version and returns a row of the next version.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self.functions: dict[int, Upcast] = {}

    def row(self, given: Any, version: int, fields: Sequence[str]) -> dict[str, Any]:
        """Returns the row in the form of ``version``, which has exactly these fields.

        An older row goes through the functions of all versions in between. A version without a function leaves the row
        as it is. Then all keys that are not in ``fields`` are left out. So a row of a newer version is accepted if it
        has all ``fields``. A row that is a list was sent before rows had names, and has version 0.

        Raises ``UnknownVersion`` if fields are missing, or if the row has no usable version.
        """
        theirs = 0 if isinstance(given, list) else given.get(VERSION, version) if isinstance(given, dict) else None
        if not isinstance(theirs, int) or isinstance(theirs, bool) or theirs < 0:
            raise UnknownVersion(
                f"Stream {self._stream!r}: a row is no JSON object with a version, as rows of this stream are: "
                f"{str(given)[:200]}. Was it sent by another program under the same stream name?"
            )
        row = given
        for number in range(theirs, version):
            if number and isinstance(row, list):
                break  # nothing gives names to its values, and the function of another version expects names
            row = self._next(row, number)
        if theirs == version and len(row) == len(fields) + 1 and VERSION in row and all(name in row for name in fields):
            return dict(row)
        missing = [name for name in fields if not isinstance(row, Mapping) or name not in row]
        if missing:
            raise UnknownVersion(self._explain(theirs, version, missing))
        return {name: row[name] for name in fields} | {VERSION: version}

    def _next(self, row: Any, version: int) -> Any:
        function = self.functions.get(version)
        if function is None:
            return row
        bare = list(row) if isinstance(row, list) else {name: row[name] for name in row if name != VERSION}
        found = function(bare)
        if not isinstance(found, Mapping):
            raise UnknownVersion(
                f"Stream {self._stream!r}: the upcast from version {version} returned {type(found).__name__}. "
                f"Return the row of version {version + 1}, a dict by field name."
            )
        return found

    def _explain(self, theirs: int, version: int, missing: Sequence[str]) -> str:
        fault = f"Stream {self._stream!r}: a row of version {theirs} lacks {', '.join(missing)}, which version {version} has"
        if theirs > version:
            return f"{fault}. This program is too old for it: install the version that declares version {theirs} of the row."
        if theirs == version:
            return f"{fault}. Another program declares version {version} of this row differently: give one of them a new version."
        gaps = [str(number) for number in range(theirs, version) if number not in self.functions]
        known = f" (there is none for version {', '.join(gaps)})" if gaps else ""
        return f"{fault}. Declare what older rows get: @upcast(..., {gaps[0] if gaps else theirs}){known}."


_upcasts: dict[str, Upcasts] = {}


def upcasts_of(stream: str) -> Upcasts:
    """Returns the upcasts of the stream of that name. A program declares its upcasts while it imports its models."""
    return _upcasts.setdefault(stream, Upcasts(stream))
