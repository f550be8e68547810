"""How a Spark query shows on the live page: its row in the table of readers, in plain SQL.

Called with a cursor of any connection; the caller decides about the transaction. ``positions`` holds what the query has
handled, not what it has planned.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ReaderRow", "beat_reader", "close_reader", "store_reader"]

_STORE = """
INSERT INTO streams_reader (key, name, kind, address, process_id, positions)
VALUES (%(key)s, %(name)s, 'spark', %(address)s, %(process_id)s, %(positions)s)
ON CONFLICT (key) DO UPDATE SET process_id = excluded.process_id, address = excluded.address,
    positions = excluded.positions, heartbeat_at = clock_timestamp(), closed_at = NULL, close_reason = '',
    connected_at = CASE WHEN streams_reader.process_id IS DISTINCT FROM excluded.process_id
                          OR streams_reader.closed_at IS NOT NULL
                        THEN clock_timestamp() ELSE streams_reader.connected_at END
"""
_BEAT = "UPDATE streams_reader SET heartbeat_at = clock_timestamp() WHERE key = %(key)s"
_CLOSE = "UPDATE streams_reader SET closed_at = clock_timestamp(), close_reason = %(reason)s WHERE key = %(key)s"


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
    cursor.execute(
        _STORE,
        {
            "key": _key(row.name),
            "name": row.name,
            "address": socket.gethostname(),
            "process_id": row.process_id,
            "positions": json.dumps(row.positions),
        },
    )


def beat_reader(cursor: Any, name: str) -> None:
    """A sign of life without a new position."""
    cursor.execute(_BEAT, {"key": _key(name)})


def close_reader(cursor: Any, name: str, reason: str) -> None:
    """The query has ended."""
    cursor.execute(_CLOSE, {"key": _key(name), "reason": reason})
