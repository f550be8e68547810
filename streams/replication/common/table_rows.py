"""Fast reading of missed facts from the tables, for followers that are far behind.

`table_rows` makes only plain tuples and one object per row, so it is fast. It returns the same rows as
``streams.reading.rows.rows_between``, but without the times of insertion. A test compares the two functions. Memory is
bounded, because `BatchSizer` lowers the number of rows to read when rows are large. All calls block.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from streams.core.declaration import FactTable, StreamDeclaration
from streams.core.queries import read_whole, row_of, rows_sql
from streams.replication.protocol.ordering import FollowedRow
from streams.replication.protocol.row_size import row_size
from streams.runtime.gc_pause import collector_paused

_token = attrgetter("token")


@dataclass(frozen=True, slots=True)
class FactRange:
    """The facts to read: facts with after < token <= upto, of ``writers``, or of all writers if ``writers`` is None."""

    after: int
    upto: int
    writers: Sequence[str] | None = None


def table_rows(
    cursor: Any, declaration: StreamDeclaration, wanted: FactRange, limit: int
) -> tuple[list[FollowedRow], int]:
    """Returns (rows, position): about ``limit`` rows of the range, and the position up to which the range was read.

    Rows ascend by token, facts are whole, and the rows of a fact are in order. The position is ``wanted.upto`` if all
    rows of the range were read. Before this call, the caller must have read the positions of the wanted writers.
    ``wanted.upto`` must not exceed these positions, because facts above a position may still be pending.
    """
    bounds = wanted.after, wanted.upto
    with collector_paused():  # thousands of new tuples would start the garbage collector again and again
        reached, whole = read_whole(
            declaration, lambda table, limit: _fetch(cursor, declaration, table, wanted, limit), bounds, limit
        )
        parts = [_followed(declaration, table, batch) for table, batch in zip(declaration.tables, whole, strict=True)]
        # heapq.merge is stable: rows of one token keep the order of the declaration's tables.
        return (parts[0] if len(parts) == 1 else list(heapq.merge(*parts, key=_token))), reached


def _fetch(
    cursor: Any, declaration: StreamDeclaration, table: FactTable, wanted: FactRange, limit: int
) -> list[tuple[Any, ...]]:
    cursor.execute(
        rows_sql(declaration, table, of_writers=wanted.writers is not None, with_times=False),
        {
            "after": wanted.after,
            "upto": wanted.upto,
            "writers": None if wanted.writers is None else list(wanted.writers),
            "limit": limit,
        },
    )
    found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


def _followed(declaration: StreamDeclaration, table: FactTable, batch: Sequence[Sequence[Any]]) -> list[FollowedRow]:
    name, shape = declaration.name, row_of(table)
    if shape is list:
        return [FollowedRow(name, writer, token, row) for token, writer, *row in batch]
    return [FollowedRow(name, writer, token, shape(row)) for token, writer, *row in batch]


class BatchSizer:
    """The number of rows to read at a time. It adapts to the size of rows, so that a batch has about ``batch_bytes``."""

    def __init__(self, batch_bytes: int = 8 * 1024 * 1024, first_rows: int = 1_000) -> None:
        self._batch_bytes = batch_bytes
        self._rows = first_rows

    def limit(self, most: int) -> int:
        return min(self._rows, most)

    def learn(self, rows: Sequence[FollowedRow]) -> None:
        """Adapts the number of rows to the size of ``rows``, which is estimated from a sample.

        The number grows at most fourfold per call, and is never below 10.
        """
        if not rows:
            return
        sample = rows[:: max(1, len(rows) // 32)]
        each = sum(row_size(row.row) for row in sample) // len(sample) + 1
        self._rows = max(10, min(self._batch_bytes // each, self._rows * 4))
