"""Reads stream rows for the notifier's memory: the newest rows at the start, later the new rows of each lane.

A lane is one writer of a stream. A stream in memory has a single lane for all its writers. The functions are called
with a cursor of a direct connection. The caller reads positions before rows, so every row that a position covers is
found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from events.notifier.stream_cache import ONE_LANE, WriterChanges
from streams.core.declaration import FactTable, StreamDeclaration, quoted
from streams.core.positions import linear_position
from streams.core.queries import FactRow, order_sql, row_of, selected_sql, token_sql
from streams.core.watermarks import trim_mark
from streams.reading.rows import StoredPosition, existing_rows, rows_between

__all__ = ["MOST_ROWS", "Newest", "TooFarBehind", "lane_rows", "lanes_of", "newest_rows"]

ROWS_PER_READ = 1_000
#: With more rows than this to read, a stream's memory is replaced instead of being fed row by row.
MOST_ROWS = 20_000


class TooFarBehind(Exception):
    """An error: more than ``MOST_ROWS`` rows would have to be read.

    The caller then replaces the notifier's memory of the stream.
    """


@dataclass(frozen=True, slots=True)
class Newest:
    """The rows with which the memory of a stream is filled at the start.

    ``floors`` maps a lane to the position up to which rows of the lane may be missing.
    """

    rows: list[FactRow]
    floors: dict[str, int]


def lanes_of(declaration: StreamDeclaration, stored: Mapping[str, StoredPosition]) -> dict[str, int]:
    """Returns for each lane the position up to which rows are to be fed, given the stored positions."""
    if declaration.in_memory:
        return {ONE_LANE: linear_position(stored.values(), declaration.empty_position)}
    return {writer: at.position for writer, at in stored.items()}


def lane_rows(cursor: Any, declaration: StreamDeclaration, lane: WriterChanges) -> list[FactRow]:
    """Returns all rows in the range ``lane``, in ascending order.

    Raises ``TooFarBehind``, and for a trimmable stream ``ResyncNeeded`` if some rows were trimmed.
    """
    found: list[FactRow] = []
    after = lane.after
    read = rows_between if declaration.trimmable else existing_rows
    while after < lane.upto:
        rows, after = read(cursor, declaration, lane.writer or None, after, lane.upto, ROWS_PER_READ)
        found += rows
        if len(found) > MOST_ROWS:
            raise TooFarBehind
    return found


def newest_rows(cursor: Any, declaration: StreamDeclaration, upto: Mapping[str, int], limit: int) -> Newest:
    """Returns the newest rows of a stream, at most ``limit`` from each table.

    ``upto`` maps a lane to the highest position that a row of the lane may have.
    """
    rows: list[FactRow] = []
    below = 0
    high = max(upto.values(), default=0)
    for table in declaration.tables:
        cursor.execute(_newest_sql(declaration, table), {"high": high, "limit": limit})
        found = cursor.fetchall()
        if len(found) >= limit:
            below = max(below, found[-1][0])  # the oldest fact may have more rows than the limit let in
        make = row_of(table)
        rows += [FactRow(row[0], row[1], make(row[2:]), None) for row in found]  # type: ignore[arg-type]
    covered = [row for row in rows if row.token <= upto.get(ONE_LANE if declaration.in_memory else row.writer, -1)]
    gone = trim_mark(cursor, declaration.name).writers
    lost = {ONE_LANE: max(gone.values(), default=0)} if declaration.in_memory else gone
    # Rows below those that were read, and rows that were trimmed, are unknown.
    floors = {lane: max(min(below, at), lost.get(lane, 0)) for lane, at in upto.items()}
    return Newest(covered, {lane: at for lane, at in floors.items() if at > 0})


def _newest_sql(declaration: StreamDeclaration, table: FactTable) -> str:
    token = token_sql(declaration, table)
    columns = ", ".join([token, quoted(table.writer_column), *selected_sql(table)])
    where = f"{quoted(table.id_column)} <= %(high)s::bigint" + (f" AND ({table.where})" if table.where else "")
    order = order_sql(declaration, table, newest_first=True)
    return f"SELECT {columns} FROM {quoted(table.name)} WHERE {where} ORDER BY {order} LIMIT %(limit)s::bigint"
