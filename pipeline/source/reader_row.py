"""How a named Spark query shows on the live page: its row in the table of readers.

Called with a cursor of any connection; the caller decides about the transaction. ``positions`` holds what the query has
handled, not what it has planned.
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
    """A named Spark query and the vectors that it has handled, by stream."""

    name: str
    process_id: int
    positions: Mapping[str, Mapping[str, int]]


def _key(name: str) -> str:
    return f"spark:{name}"


def store_reader(cursor: Any, row: ReaderRow) -> None:
    """Insert or update the row, with a fresh sign of life."""
    known = {"key": _key(row.name), "name": row.name, "address": socket.gethostname(), "positions": row.positions}
    reader_table.store_readers(cursor, "spark", row.process_id, [known])


def beat_reader(cursor: Any, name: str) -> None:
    """A sign of life without a new position."""
    reader_table.beat_reader(cursor, _key(name))


def close_reader(cursor: Any, name: str, reason: str) -> None:
    """The query has ended."""
    reader_table.close_reader(cursor, _key(name), reason)
