"""Reads streams from their tables: stored positions first, then rows at or below these positions.

A position is stored only after the commit of every fact that it covers. So it is safe to read the positions before the
rows. If the rows were read first, a fact could be committed between the two reads and be missed. Every function gets a
DB-API cursor (of Django or of a direct connection), and blocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

from streams.core.declaration import FactTable, StreamDeclaration
from streams.core.positions import linear_position
from streams.core.queries import STORED_POSITIONS, FollowedRow, read_whole, row_of, rows_sql
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed
from streams.runtime.gc_pause import collector_paused

__all__ = [
    "StoredPosition",
    "existing_rows",
    "linear_position",
    "rows_between",
    "stored_positions",
    "writer_names",
]

_token = attrgetter("token")
_WRITER_NAMES = "SELECT id, instance_name FROM streams_streamposition WHERE stream = %s"


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """A row of the table of positions. Numbers are positive, also for backward streams."""

    stream: str
    writer: str
    position: int
    state: str
    updated_at: datetime
    last_advance_at: datetime
    last_fact_at: datetime | None
    last_write_position: int | None
    generation: int = 0


def stored_positions(cursor: Any, streams: Sequence[str] | None = None) -> dict[str, dict[str, StoredPosition]]:
    """Returns ``{stream: {writer: position}}`` from one snapshot, for ``streams``, or for all streams if ``streams`` is None."""
    cursor.execute(STORED_POSITIONS, {"streams": None if streams is None else list(streams)})
    found: dict[str, dict[str, StoredPosition]] = {}
    for row in cursor.fetchall():
        stored = StoredPosition(*row)
        found.setdefault(stored.stream, {})[stored.writer] = stored
    return found


def writer_names(cursor: Any, stream: str) -> dict[int, str]:
    """Returns ``{number: name}`` of a stream's writers. In their text form, tokens contain these numbers."""
    cursor.execute(_WRITER_NAMES, [stream])
    return dict(cursor.fetchall())


def rows_between(
    cursor: Any, declaration: StreamDeclaration, writer: str | None, after: int, upto: int, limit: int
) -> tuple[list[FollowedRow], int]:
    """Returns the rows with ``after < token <= upto``, and the position up to which rows were read.

    If ``writer`` is given, returns only that writer's rows. Rows are in ascending order of token. A fact is never
    split, so the number of rows may differ from ``limit``. If there are no more rows, the position is ``upto``.
    ``upto`` must not exceed a position that the caller read from the database before this call. Raises ``ResyncNeeded``
    if facts after ``after`` were trimmed.
    """
    found = existing_rows(cursor, declaration, None if writer is None else [writer], after, upto, limit)
    # Checked after the rows were read. A trim deletes facts and moves the low-water mark in one transaction, so a trim before the
    # reading is always noticed.
    check_not_trimmed(cursor, declaration.name, VectorToken(after), writer)
    return found


def existing_rows(
    cursor: Any, declaration: StreamDeclaration, writers: Sequence[str] | None, after: int, upto: int, limit: int
) -> tuple[list[FollowedRow], int]:
    """Returns the same as ``rows_between``, of several writers or of all, but does not check whether facts were trimmed.

    For callers to whom trimmed facts do not matter, or who check this themselves.
    """
    given = {"after": after, "upto": upto, "writers": None if writers is None else list(writers)}

    def fetch(table: FactTable, limit: int) -> list[tuple[Any, ...]]:
        cursor.execute(rows_sql(declaration, table, of_writers=writers is not None), given | {"limit": limit})
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found

    with collector_paused():  # thousands of new tuples would start the garbage collector again and again
        reached, whole = read_whole(declaration, fetch, (after, upto), limit)
        parts = [_followed(declaration, table, batch) for table, batch in zip(declaration.tables, whole, strict=True)]
        # heapq.merge is stable: rows of one token keep the order of the declaration's tables.
        return (parts[0] if len(parts) == 1 else list(heapq.merge(*parts, key=_token))), reached


def _followed(declaration: StreamDeclaration, table: FactTable, batch: Sequence[Sequence[Any]]) -> list[FollowedRow]:
    name, shape = declaration.name, row_of(table)
    if shape is list:
        return [FollowedRow(name, writer, token, row) for token, writer, *row in batch]
    return [FollowedRow(name, writer, token, shape(row)) for token, writer, *row in batch]
