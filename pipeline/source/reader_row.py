"""Stores a named Spark query in the table of readers, which the live page shows.

All functions take a cursor of any connection. The caller commits. ``positions`` holds what the query has handled, not
what it has planned.
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
    """The row of a named Spark query, with the vector up to which it has handled each stream."""

    name: str
    process_id: int
    positions: Mapping[str, Mapping[str, int]]


def _key(name: str) -> str:
    return f"spark:{name}"


def store_reader(cursor: Any, row: ReaderRow) -> None:
    """Inserts or updates the row, with a fresh heartbeat."""
    known = {"key": _key(row.name), "name": row.name, "address": socket.gethostname(), "positions": row.positions}
    reader_table.store_readers(cursor, "spark", row.process_id, [known])


def beat_reader(cursor: Any, name: str) -> None:
    """Stores a heartbeat without a new position."""
    reader_table.beat_reader(cursor, _key(name))


def close_reader(cursor: Any, name: str, reason: str) -> None:
    """Marks the row as closed, with the reason. Called when the query has ended."""
    reader_table.close_reader(cursor, _key(name), reason)
