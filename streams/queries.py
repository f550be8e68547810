"""The SQL of reading streams, as text (pure): the same for Django's connection, a direct one, and Spark executors.

Parameters are written ``%(name)s``. Tokens are positive in results, ascending, also for backward streams.
Names of tables and columns come from declarations, never from input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streams.declaration import FactTable, StreamDeclaration

__all__ = ["STORED_POSITIONS", "FactRow", "cut_whole_tokens", "ids_sql", "maximum_sql", "rows_sql"]

#: Stored positions of all streams (or those in ``streams``), in one snapshot.
STORED_POSITIONS = """
SELECT stream, instance_name, abs(position), state, updated_at, last_advance_at, pending_facts, oldest_pending_at,
       abs(last_write_position)
FROM streams_streamposition
WHERE %(streams)s::text[] IS NULL OR stream = ANY(%(streams)s::text[])
"""


@dataclass(frozen=True, slots=True)
class FactRow:
    """One row of a fact as it travels: token (positive), writer, JSON row, time of the insert."""

    token: int
    writer: str
    row: Any
    received_at: datetime


def _condition(table: FactTable, declaration: StreamDeclaration, of_writer: bool) -> str:
    column = table.id_column
    if declaration.backward:
        bounds = f"{column} < -(%(after)s::bigint) AND {column} >= -(%(upto)s::bigint)"
    else:
        bounds = f"{column} > %(after)s AND {column} <= %(upto)s"
    parts = [bounds]
    if of_writer:
        parts.append(f"{table.writer_column} = %(writer)s")
    if table.where:
        parts.append(f"({table.where})")
    return " AND ".join(parts)


def _token(table: FactTable, declaration: StreamDeclaration) -> str:
    return f"-{table.id_column}" if declaration.backward else table.id_column


def rows_sql(declaration: StreamDeclaration, table: FactTable, *, of_writer: bool) -> str:
    """Rows of one table with ``after < token <= upto`` (of ``writer``), ascending, at most ``limit``.

    Columns: token, writer, received_at, then the table's own columns.
    """
    token = _token(table, declaration)
    columns = ", ".join([token, table.writer_column, table.received_column, *(c.name for c in table.columns)])
    order = f"{table.id_column} {'DESC' if declaration.backward else 'ASC'}"
    order += f", {table.then_by}" if table.then_by else ""
    return (
        f"SELECT {columns} FROM {table.name} WHERE {_condition(table, declaration, of_writer)} "
        f"ORDER BY {order} LIMIT %(limit)s"
    )


def ids_sql(declaration: StreamDeclaration) -> str:
    """(writer, token) of all rows with ``token >= linear``, ascending: step 6 of start-up (``streams.md`` 5)."""
    selects = []
    for table in declaration.tables:
        token = _token(table, declaration)
        bound = (
            f"{table.id_column} <= -(%(linear)s::bigint)"
            if declaration.backward
            else f"{table.id_column} >= %(linear)s"
        )
        extra = f" AND ({table.where})" if table.where else ""
        selects.append(f"SELECT {table.writer_column}, {token} AS token FROM {table.name} WHERE {bound}{extra}")
    return " UNION ".join(selects) + " ORDER BY token"


def maximum_sql(declaration: StreamDeclaration) -> str:
    """The largest token in the stream's tables, 0 when they are empty."""
    selects = []
    for table in declaration.tables:
        extreme = f"-min({table.id_column})" if declaration.backward else f"max({table.id_column})"
        extra = f" WHERE {table.where}" if table.where else ""
        selects.append(f"SELECT {extreme} AS token FROM {table.name}{extra}")
    return f"SELECT coalesce(max(token), 0) FROM ({' UNION ALL '.join(selects)}) AS tables"


def cut_whole_tokens(
    batches: Sequence[Sequence[Sequence[Any]]], upto: int, limit: int
) -> tuple[int, list[Sequence[Sequence[Any]]]]:
    """Cut the tables' batches, each read with ``limit``, so that no token is split.

    Returns the position reached and the batches up to it. A batch that was cut by the limit may miss rows of its last
    token, so the position reached lies below that token. When a single token fills a whole batch the position
    reached lies below all rows: the caller reads again with a larger limit.
    """
    reached = upto
    for batch in batches:
        if len(batch) >= limit:
            reached = min(reached, batch[-1][0] - 1)
    return reached, [[row for row in batch if row[0] <= reached] for batch in batches]
