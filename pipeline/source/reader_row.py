"""Stores a Spark query with a ``readerName`` in the table of readers, which the live page shows.

The query's own cursor is in its checkpoint. So the row says what the query has handled while it runs, and until an
operator forgets it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streams.reading import reader_table

__all__ = ["ReaderRow", "store_reader"]


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """The row of a named Spark query. ``positions`` has the vector up to which the query has handled each stream."""

    name: str
    process_id: int
    positions: Mapping[str, Mapping[str, int]]


def store_reader(cursor: Any, row: ReaderRow) -> None:
    """Inserts or updates the row of a query. Sets the time of its heartbeat to now."""
    known = {
        "key": f"{reader_table.QUERY}{row.name}",
        "name": row.name,
        "address": socket.gethostname(),
        "positions": row.positions,
    }
    reader_table.store_readers(cursor, "spark", row.process_id, [known])
