"""Builds the SQL text that reads streams (pure). Django's connection, direct connections and Spark executors all use it.

Parameters are written ``%(name)s``. In this module, a *token* is the ID of a row as readers see it: positive and
ascending, also for backward streams. Names of tables and columns come from declarations, never from input.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec

from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration, quoted
from streams.core.named_rows import NamedRow, object_sql
from streams.core.own_stack import on_own_stack

Row = TypeVar("Row", bound=Sequence[Any])

#: No read asks for more rows of a table than this, even if one fact has more rows.
_LARGEST_LIMIT = 1_000_000

#: Stored positions of the streams in the array ``streams``, or of all streams if ``streams`` is null. One snapshot.
STORED_POSITIONS = """
SELECT stream, instance_name, abs(position), state, updated_at, last_advance_at, last_fact_at,
       abs(last_write_position), generation
FROM streams_streamposition
WHERE %(streams)s::text[] IS NULL OR stream = ANY(%(streams)s::text[])
"""


#: The present epoch: its word, and the identity of the database in which it began (``streams.epochs``).
NEWEST_EPOCH = """
SELECT word, system_identifier, database_oid, table_oid, timeline FROM streams_epoch ORDER BY id DESC LIMIT 1
"""


class FollowedRow(msgspec.Struct, frozen=True):
    """One row in the form in which it is passed to a handler. All rows of a fact have the same token."""

    stream: str
    instance: str
    token: int
    row: Any


def bounds_sql(
    declaration: StreamDeclaration, table: FactTable, after: str = "%(after)s::bigint", upto: str = "%(upto)s::bigint"
) -> str:
    """Returns the SQL condition ``after < token <= upto`` on rows of one table. The index on the ID can serve this condition."""
    column = quoted(table.id_column)
    if declaration.backward:
        bounds = f"{column} < -({after}) AND {column} >= -({upto})"
    else:
        bounds = f"{column} > {after} AND {column} <= {upto}"
    return f"{bounds} AND ({table.where})" if table.where else bounds


def token_sql(declaration: StreamDeclaration, table: FactTable) -> str:
    """Returns the SQL expression for a row's token, which is its ID without the sign of a backward stream."""
    column = quoted(table.id_column)
    return f"-{column}" if declaration.backward else column


def order_sql(declaration: StreamDeclaration, table: FactTable, *, newest_first: bool = False) -> str:
    """Returns the ORDER BY expression for ascending (or descending) tokens."""
    return f"{quoted(table.id_column)} {'DESC' if declaration.backward is not newest_first else 'ASC'}"


def rows_sql(declaration: StreamDeclaration, table: FactTable, *, of_writers: bool = False) -> str:
    """Returns the query for rows of one table with ``after < token <= upto``, ascending, at most ``limit`` of them.

    If ``of_writers`` is true, the query has a parameter ``writers``, an array of names. The columns are: token, writer, and
    then the columns that are sent, whose values ``row_of`` accepts. The limit may cut off some rows of the last token.
    ``cut_whole_tokens`` removes such an incomplete token.
    """
    columns = ", ".join([token_sql(declaration, table), quoted(table.writer_column), *selected_sql(table)])
    condition = bounds_sql(declaration, table)
    condition += f" AND {quoted(table.writer_column)} = ANY(%(writers)s)" if of_writers else ""
    # The inner query sorts by the ID alone, which the index provides. If it also sorted by ``then_by``, PostgreSQL might sort
    # the whole table to return a thousand rows. The outer query orders the rows of each token.
    limited = (
        f"SELECT * FROM {quoted(table.name)} WHERE {condition} ORDER BY {order_sql(declaration, table)} LIMIT %(limit)s"
    )
    order = order_sql(declaration, table)
    order += f", {quoted(table.then_by)}" if table.then_by else ""
    return f"SELECT {columns} FROM ({limited}) AS limited ORDER BY {order}"


def selected_sql(table: FactTable) -> list[str]:
    """Returns the SQL expressions whose values ``row_of`` accepts: one for each column, or one for a whole JSON object."""
    return [object_sql(table)] if isinstance(table.row, NamedRow) else [*map(column_sql, table.columns)]


def column_sql(column: Column) -> str:
    """Returns the SQL expression that selects a column for ``row_of``. A JSON column is cast to text.

    Without the cast, Django's connections would return ``jsonb`` as text, and direct connections would decode it.
    """
    name = quoted(column.name)
    return f"{name}::text" if column.kind is ColumnKind.JSON else name


@cache
def row_of(table: FactTable) -> Callable[[Sequence[Any]], Any]:
    """Returns a function that builds the row to send from the values of ``selected_sql``."""
    if isinstance(table.row, NamedRow):
        return table.row
    places = [place for place, column in enumerate(table.columns) if column.kind is ColumnKind.JSON]
    if not places:
        return table.row

    def row(values: Sequence[Any]) -> Any:
        decoded = list(values)
        for place in places:
            if decoded[place] is not None:
                decoded[place] = on_own_stack(json.loads, decoded[place])
        return table.row(decoded)

    return row


def maximum_sql(declaration: StreamDeclaration) -> str:
    """Returns the query for the largest token that the stream's tables hold, or held before they were trimmed.

    The query returns 0 if the tables never held a row.
    """
    name = declaration.name.replace("'", "''")
    selects = [f"SELECT max(position) AS token FROM streams_lowwatermark WHERE stream = '{name}'"]
    for table in declaration.tables:
        extreme = f"-min({quoted(table.id_column)})" if declaration.backward else f"max({quoted(table.id_column)})"
        extra = f" WHERE {table.where}" if table.where else ""
        selects.append(f"SELECT {extreme} AS token FROM {quoted(table.name)}{extra}")
    return f"SELECT coalesce(max(token), 0) FROM ({' UNION ALL '.join(selects)}) AS tables"


def maxima_sql(declarations: Iterable[StreamDeclaration]) -> str:
    """Returns the query for one row with the values of ``maximum_sql`` of all these streams."""
    return f"SELECT {', '.join(f'({maximum_sql(declaration)})' for declaration in declarations)}"


def read_whole(
    declaration: StreamDeclaration,
    fetch: Callable[[FactTable, int], Sequence[Row]],
    bounds: tuple[int, int],
    limit: int,
) -> tuple[int, list[Sequence[Row]]]:
    """Reads whole facts in the range ``after, upto = bounds``, never only some rows of a fact.

    Returns the position up to which facts were read, and for each table the rows up to that position. ``fetch(table,
    limit)`` must return rows in ascending order of token, with the token as first value. If one fact has more rows than
    the limit, the rows are read again with a larger limit, up to a million.
    """
    after, upto = bounds
    while True:
        reached, whole = cut_whole_tokens([fetch(table, limit) for table in declaration.tables], upto, limit)
        if reached > after or limit >= _LARGEST_LIMIT:
            return reached, whole
        limit = min(limit * 10, _LARGEST_LIMIT)


def cut_whole_tokens(batches: Sequence[Sequence[Row]], upto: int, limit: int) -> tuple[int, list[Sequence[Row]]]:
    """Removes rows at the end of the tables' batches, so that each token keeps either all of its rows or none.

    Each batch was read with ``limit``. Returns the position up to which the batches are complete, and the batches up to
    that position. A full batch may lack rows of its last token, so the position lies below that token. If a single token
    fills a batch, the position lies below all rows of the batch. Then the caller must read again with a larger limit.
    """
    reached = upto
    for batch in batches:
        if len(batch) >= limit:
            reached = min(reached, batch[-1][0] - 1)
    return reached, [[row for row in batch if row[0] <= reached] for batch in batches]
