"""Connections of a server and followers tell the table of readers once a second how far they are.

Blocking; called by one thread at a time, on a connection of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from streams.db import driver
from streams.reading.reader_table import forget_readers, store_readers
from streams.replication.common.command_counts import received_rdata

__all__ = ["ReaderRows"]


class ReaderRows:
    """Writes rows of one kind of reader."""

    def __init__(self, kind: str, served_by: str, using: str) -> None:
        self._kind = kind
        self._served_by = served_by
        self._connection = driver.KeptConnection(using, "replsite readers")

    def write(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Insert or update the rows; those with a ``close_reason`` are closed by it. Raises the driver's errors.

        Returns those that somebody wants to be disconnected: key -> who.
        """
        if not rows:
            return {}
        with self._connection.cursor() as cursor:
            if self._kind == "follower":
                received_rdata.store(cursor)
            return store_readers(cursor, self._kind, os.getpid(), rows, self._served_by)

    def forget_old(self) -> None:
        """Remove readers of any kind that nobody looks at any more."""
        with self._connection.cursor() as cursor:
            forget_readers(cursor)

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()
