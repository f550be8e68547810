"""Stores a named Spark query in the table of readers, which the live page shows.

All functions take a cursor of any connection. The caller commits. The stored positions are those that the query has
handled. Positions of planned micro-batches are not stored.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streams.reading import reader_table

__all__ = ["ReaderRow", "beat_reader", "close_reader", "store_reader"]


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """The row of a named Spark query. ``positions`` has the vector up to which the query has handled each stream."""

    name: str
    process_id: int
    positions: Mapping[str, Mapping[str, int]]


def _key(name: str) -> str:
    return f"spark:{name}"


def store_reader(cursor: Any, row: ReaderRow) -> None:
    """Inserts or updates the row of a query. Sets the time of its heartbeat to now."""
    known = {"key": _key(row.name), "name": row.name, "address": socket.gethostname(), "positions": row.positions}
    reader_table.store_readers(cursor, "spark", row.process_id, [known])


def beat_reader(cursor: Any, name: str) -> None:
    """Stores a heartbeat of the query ``name`` without a new position."""
    reader_table.beat_reader(cursor, _key(name))


def close_reader(cursor: Any, name: str, reason: str) -> None:
    """Marks the row of the query ``name`` as closed, with a reason. To be called when the query has ended."""
    reader_table.close_reader(cursor, _key(name), reason)
