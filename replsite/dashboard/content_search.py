"""Searches the rows of a stream for a part of a value, from the newest row down, for a bounded time.

No index serves this: one on all parts of all values would cost each append more than the append itself. So rows are read, in
statements that grow as long as there is time. To read as many as possible, each column is compared for itself (a row as one
JSON text takes six times as long), without the columns whose values cannot have such a text, such as numbers for letters.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from django.db import OperationalError, transaction

from streams.core.declaration import FactTable, StreamDeclaration, quoted
from streams.core.queries import bounds_sql, order_sql, token_sql
from streams.db import driver

#: A search reads about so long, and an answer with it takes less than 300 ms.
SEARCH_SECONDS = 0.2
#: Rows of the first statement, and the most by which the next one is larger.
FIRST_ROWS = 1_000
_GROWTH = 4
#: A statement that lasts longer is ended, and one for so few rows takes its place: a row may have a megabyte.
_LONGEST_SECONDS, _FEW_ROWS = 0.5, 16
#: So often a value may be in a column until it counts as common, and the index is not asked for it.
_COMMON = 200
_LONGEST_NUMBER = 18
#: So many rows of one statement are found at most. Those below are left to the next one.
_MOST_ROWS = 1_000
#: No column of a fact has this name.
_ALIAS = '"token of the row"'

_COLUMNS = """
SELECT attname, typname, typcategory FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
#: Columns that an index begins with. A primary key is no value of a fact, but a number that the table gave to the row.
_INDEXED = """
SELECT DISTINCT attname, typname, typcategory
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0] JOIN pg_type ON pg_type.oid = atttypid
WHERE indrelid = %s::regclass AND indisvalid AND indpred IS NULL AND amname IN ('btree', 'hash') AND NOT indisprimary
"""
_TRIMMED = "SELECT coalesce(max(position), 0) FROM streams_lowwatermark WHERE stream = %s"
#: What values of these types consist of, in lower case.
_WHOLE, _TIME = "-0123456789", "-+0123456789:. bcinfty"
_LETTERS = {
    "int2": _WHOLE, "int4": _WHOLE, "int8": _WHOLE, "numeric": f"{_WHOLE}.nainfty", "float4": f"{_WHOLE}.e+nainfty",
    "float8": f"{_WHOLE}.e+nainfty", "date": _TIME, "timestamp": _TIME, "timestamptz": _TIME, "bool": "truefals",
    "uuid": f"{_WHOLE}abcdef",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """What was found: tokens, the highest first. Nothing above ``left`` was left out; 0: the search is at its end."""

    tokens: Sequence[int]
    left: int
    is_full: bool

    @property
    def more(self) -> bool:
        return self.left > 0


def search_content(cursor: Any, declaration: StreamDeclaration, text: str, upto: int, most: int) -> Part:
    """Returns the highest tokens up to ``upto``, at most ``most``, of facts with a value that has the text, in any case."""
    tables = [(table, _content_sql(cursor, declaration, table, text)) for table in declaration.tables]
    values: dict[str, Any] = _needles(text) | {"most": _MOST_ROWS}
    tokens: list[int] = []
    left, rows, end = upto, FIRST_ROWS, time.monotonic() + SEARCH_SECONDS
    while left > 0 and len(tokens) <= most and rows:
        started = time.monotonic()
        try:
            some, floor = _read(cursor, tables, values, left, rows)
        except OperationalError as error:
            if not isinstance(error.__cause__, driver.statement_cancelled) or rows <= _FEW_ROWS:
                raise
            rows = _FEW_ROWS
            continue
        tokens += sorted(some, reverse=True)
        left = max(floor - 1, 0)
        rows = _next_rows(rows, time.monotonic() - started, end - time.monotonic())
    if len(tokens) > most:
        return Part(tokens[:most], tokens[most - 1] - 1, is_full=True)
    return Part(tokens, left, is_full=False)


def _read(
    cursor: Any, tables: Sequence[tuple[FactTable, str]], values: dict[str, Any], upto: int, rows: int
) -> tuple[set[int], int]:
    """Reads so many rows of each table. Returns the tokens that fit, and the token down to which all tables were read, or 0."""
    found_tokens, floor = set[int](), 0
    with transaction.atomic(using=cursor.db.alias):
        if rows > _FEW_ROWS:  # so few are read however long it takes, so that the search goes on
            cursor.execute(f"SET LOCAL statement_timeout = {int(_LONGEST_SECONDS * 1000)}")
        for _, sql in tables:  # each at most as far down as the one before
            cursor.execute(sql, values | {"after": max(floor - 1, 0), "upto": upto, "rows": rows})
            found, lowest, number = cursor.fetchone()
            found_tokens.update(found or ())
            if number >= rows:
                floor = max(floor, lowest)
            if found and len(found) >= _MOST_ROWS:  # those below were cut off
                floor = max(floor, found[-1])
        cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
    return {token for token in found_tokens if token >= floor}, floor


def equal_tokens(cursor: Any, declaration: StreamDeclaration, text: str, upto: int) -> set[int]:
    """Returns tokens up to ``upto`` of facts with a value that equals the text, in columns that an index begins with.

    Values that are common in their column are left out: facts with them are among the first that a search finds.
    """
    found: set[int] = set()
    for table in declaration.tables:
        cursor.execute(_INDEXED, [quoted(table.name)])
        for name, kind, category in cursor.fetchall():
            if (value := _value(text, kind, category)) is None:
                continue
            # The bounds stand outside: inside, the index on the ID could serve the query, row by row of the whole table.
            cursor.execute(
                f"WITH equal AS MATERIALIZED (SELECT * FROM {quoted(table.name)} WHERE {quoted(name)} = %(value)s "
                f"LIMIT {_COMMON}) SELECT {token_sql(declaration, table)}, "
                f"{bounds_sql(declaration, table, '0', '%(upto)s::bigint')} FROM equal",
                {"value": value, "upto": upto},
            )
            rows = cursor.fetchall()
            if len(rows) < _COMMON:
                found.update(token for token, is_within in rows if is_within)
    return found


def trimmed_to(cursor: Any, declaration: StreamDeclaration) -> int:
    """Returns the token up to which facts were trimmed."""
    cursor.execute(_TRIMMED, [declaration.name])
    return int(cursor.fetchone()[0])


def _next_rows(rows: int, lasted: float, left: float) -> int:
    """Returns how many rows the next statement may read in the time that is left. 0: so few that the page had better go on."""
    possible = int(rows * left * 0.8 / max(lasted, 1e-6))
    return min(rows * _GROWTH, possible) if possible >= FIRST_ROWS / 2 else 0


def _needles(text: str) -> dict[str, str]:
    """Returns the text as it is and as a JSON string has it."""
    return {"raw": text, "escaped": orjson.dumps(text).decode()[1:-1]}


def _content_sql(cursor: Any, declaration: StreamDeclaration, table: FactTable, text: str) -> str:
    """Returns the query for one row: tokens of rows that fit, highest first, the lowest token that was read, the number of rows.

    The newest rows are read by the index on the ID. All rows of the lowest token are read, so that the next statement begins
    below it.
    """
    cursor.execute(_COLUMNS, [quoted(table.name)])
    conditions = [
        condition
        for name, kind, category in cursor.fetchall()
        for condition in _conditions(f"newest.{quoted(name)}", kind, category, text)
    ]
    newest = (
        f"SELECT *, {token_sql(declaration, table)} AS {_ALIAS} FROM {quoted(table.name)} "
        f"WHERE {bounds_sql(declaration, table)} ORDER BY {order_sql(declaration, table, newest_first=True)} "
        "FETCH FIRST %(rows)s ROWS WITH TIES"
    )
    return (
        f"SELECT (array_agg({_ALIAS}) FILTER (WHERE {' OR '.join(conditions) or 'false'}))[:%(most)s], "
        f"coalesce(min({_ALIAS}), 0), count(*) FROM ({newest}) AS newest"
    )


def _conditions(column: str, kind: str, category: str, text: str) -> list[str]:
    if (letters := _LETTERS.get(kind)) is not None and not set(text.lower()) <= set(letters):
        return []
    if kind in ("json", "jsonb"):  # a text of the type json may write a letter as an escape
        content = f"{column}::jsonb::text" if kind == "json" else f"{column}::text"
    elif category in "SNDBAE" or kind in _LETTERS:
        content = f"{column}::text"
    else:
        content = f"to_jsonb({column})::text"
    # A search for letters of ASCII is quicker so, and any collation of a column allows it. It is quicker than ILIKE, too.
    collation = '"C"' if text.isascii() else '"default"'
    names = ["raw"] if category == "S" or len(set(_needles(text).values())) == 1 else ["raw", "escaped"]
    return [
        f"strpos(lower(({content}) COLLATE {collation}), lower(%({name})s::text COLLATE {collation})) > 0"
        for name in names
    ]


def _value(text: str, kind: str, category: str) -> Any:
    """Returns the text as a value of a column, or None if it is none."""
    if category == "S":
        return text
    if kind in ("int2", "int4", "int8"):
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER else None
    if kind == "uuid":
        try:
            return UUID(text)
        except ValueError:
            return None
    return None
