"""Reads streams from their tables: stored positions first, then rows at or below them.

A position is stored only after the commit of every fact that it covers. So reading positions before rows is safe, and the
other order is not. Every function gets a DB-API cursor (Django's or a direct one), and blocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streams.core.declaration import FactTable, StreamDeclaration
from streams.core.positions import linear_position
from streams.core.queries import STORED_POSITIONS, FactRow, read_whole, row_of, rows_sql
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed

__all__ = [
    "FactRow",
    "StoredPosition",
    "existing_rows",
    "linear_position",
    "rows_between",
    "stored_positions",
    "writer_names",
]

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
    pending: int
    oldest_pending_at: datetime | None
    last_write_position: int | None
    generation: int = 0


def stored_positions(cursor: Any, streams: Sequence[str] | None = None) -> dict[str, dict[str, StoredPosition]]:
    """Returns ``{stream: {writer: position}}`` in one snapshot, of all streams or of those named."""
    cursor.execute(STORED_POSITIONS, {"streams": None if streams is None else list(streams)})
    found: dict[str, dict[str, StoredPosition]] = {}
    for row in cursor.fetchall():
        stored = StoredPosition(*row)
        found.setdefault(stored.stream, {})[stored.writer] = stored
    return found


def writer_names(cursor: Any, stream: str) -> dict[int, str]:
    """Returns ``{number: writer}``. In the text form of tokens, the numbers stand for the stream's writers."""
    cursor.execute(_WRITER_NAMES, [stream])
    return dict(cursor.fetchall())


def rows_between(
    cursor: Any, declaration: StreamDeclaration, writer: str | None, after: int, upto: int, limit: int
) -> tuple[list[FactRow], int]:
    """Returns rows with ``after < token <= upto`` of one writer (None: of all), and the position reached.

    Rows ascend by token. There are about ``limit`` of them, because a fact is never split. The position reached is
    ``upto`` if nothing is left. The caller must not ask beyond a position that it read before. Raises ``ResyncNeeded`` if
    facts after ``after`` were trimmed.
    """
    found = existing_rows(cursor, declaration, writer, after, upto, limit)
    # After the rows: a trim deletes facts and moves the mark in one transaction, so it cannot stay unnoticed.
    check_not_trimmed(cursor, declaration.name, VectorToken(after), writer)
    return found


def existing_rows(
    cursor: Any, declaration: StreamDeclaration, writer: str | None, after: int, upto: int, limit: int
) -> tuple[list[FactRow], int]:
    """Returns the same as `rows_between`, without the check for trimmed facts.

    For callers that do not care about trimmed facts, or check themselves.
    """

    def fetch(table: FactTable, limit: int) -> list[tuple[Any, ...]]:
        sql = rows_sql(declaration, table, of_writer=writer is not None)
        cursor.execute(sql, {"after": after, "upto": upto, "writer": writer, "limit": limit})
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found

    reached, whole = read_whole(declaration, fetch, (after, upto), limit)
    streams = [
        [FactRow(row[0], row[1], make(row[3:]), row[2]) for row in batch]
        for make, batch in zip(map(row_of, declaration.tables), whole, strict=True)
    ]
    rows = streams[0] if len(streams) == 1 else list(heapq.merge(*streams, key=lambda fact: fact.token))
    return rows, reached
