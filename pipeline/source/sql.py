"""The SQL of the Spark source (no I/O).

A bulk read takes no parameters, so all values are literals, quoted by ``literal``. Names of tables and columns come
from declarations.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.source.filters import Condition, condition_sql, tables_of
from pipeline.source.literals import literal
from pipeline.source.offsets import Bound, PartitionRange
from pipeline.source.stream_schemas import COMMON_COLUMNS
from streams.core.declaration import ColumnKind, FactTable, StreamDeclaration, quoted
from streams.core.named_rows import json_sql, text_sql
from streams.core.queries import bounds_sql, order_sql, token_sql

__all__ = ["cuts_sql", "rows_of_piece_sql"]

_RECEIVED = "received_at_ms"
_COMMON = {name for name, _ in COMMON_COLUMNS}


def rows_of_piece_sql(
    declaration: StreamDeclaration,
    table: FactTable,
    piece: PartitionRange,
    names: Sequence[str],
    conditions: Sequence[Condition] = (),
) -> str:
    """Returns the query for a piece's rows in one table, sorted by token.

    The query selects the columns in ``names``, except columns that the table does not have.
    """
    columns = [sql for name in names if (sql := _column_sql(declaration, table, name))] or ["1 AS nothing"]
    order = order_sql(declaration, table) + (f", {quoted(table.then_by)}" if table.then_by else "")
    return (
        f"SELECT {', '.join(columns)} FROM {quoted(table.name)} WHERE {_where(declaration, table, piece, conditions)} "
        f"ORDER BY {order}"
    )


def _column_sql(declaration: StreamDeclaration, table: FactTable, name: str) -> str:
    """Returns the column ``name`` as an item of SELECT, or an empty string if the table does not have this column.

    Times are not converted here.
    """
    if name in _COMMON:
        places = {
            "token": token_sql(declaration, table),
            "writer": quoted(table.writer_column),
            _RECEIVED: quoted(table.received_column),
        }
        return f"{places[name]} AS {name}" if name in places else ""
    column = next((column for column in table.stored if column.key == name), None)
    if column is None:
        return ""
    plain = quoted(column.name)
    of_json = column.kind in (ColumnKind.ARRAY, ColumnKind.JSON)
    value = json_sql(column) if of_json else text_sql(column) or plain
    return value if value == quoted(name) else f"{value} AS {quoted(name)}"


def cuts_sql(
    declaration: StreamDeclaration,
    piece: PartitionRange,
    size: int,
    limit: int | None,
    conditions: Sequence[Condition] = (),
) -> str:
    """Returns the query for the rows at which a piece is divided into partitions.

    The query returns (row number, token), in ascending order. It returns the first row, every ``size``-th row, and the
    first row after ``limit`` rows. Rows are counted from 1, over all tables together.
    """
    limited = "ALL" if limit is None else str(limit + 1)
    selects = [
        f"(SELECT {token_sql(declaration, table)} AS token FROM {quoted(table.name)} "
        f"WHERE {_where(declaration, table, piece, conditions)} ORDER BY {order_sql(declaration, table)} LIMIT {limited})"
        for table in tables_of(conditions, declaration)
    ]
    if not selects:
        return "SELECT 1, 1 WHERE false"
    extra = "" if limit is None else f" OR n = {limit + 1}"
    return (
        f"SELECT n, token FROM (SELECT token, row_number() OVER (ORDER BY token) AS n "
        f"FROM ({' UNION ALL '.join(selects)}) AS facts) AS numbered WHERE n % {size} = 0 OR n = 1{extra} ORDER BY n"
    )


def _where(
    declaration: StreamDeclaration, table: FactTable, piece: PartitionRange, conditions: Sequence[Condition]
) -> str:
    parts = [
        bounds_sql(declaration, table, str(piece.after), str(piece.upto)),
        f"({' OR '.join(_bound_sql(declaration, table, piece, bound) for bound in piece.bounds)})",
        *(condition_sql(condition, declaration, table) for condition in conditions),
    ]
    return " AND ".join(parts)


def _bound_sql(declaration: StreamDeclaration, table: FactTable, piece: PartitionRange, bound: Bound) -> str:
    sql = f"{quoted(table.writer_column)} IN ({', '.join(map(literal, bound.writers))})"
    if (bound.after, bound.upto) == (piece.after, piece.upto):
        return sql
    token = token_sql(declaration, table)
    return f"({sql} AND {token} > {bound.after} AND {token} <= {bound.upto})"
