"""Writes the rows of a server's connections and of this process's followers to the table of readers.

All calls block. Only one thread may call at a time. Each `ReaderRows` has a database connection of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from streams.db import driver
from streams.reading.reader_table import forget_readers, store_readers
from streams.replication.common.command_counts import received_rdata


class ReaderRows:
    """The object that writes this process's rows of one kind of reader: ``connection`` or ``follower``."""

    def __init__(self, kind: str, served_by: str, using: str) -> None:
        self._kind = kind
        self._served_by = served_by
        self._connection = driver.KeptConnection(using, "replsite readers")

    def write(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Inserts or updates the rows. A row with a ``close_reason`` is closed. Raises the driver's errors.

        Returns ``{key of the row: user}`` for each reader that a user has asked to disconnect.
        """
        if not rows:
            return {}
        with self._connection.cursor() as cursor:
            if self._kind == "follower":
                received_rdata.store(cursor)
            return store_readers(cursor, self._kind, os.getpid(), rows, self._served_by)

    def forget_old(self) -> None:
        with self._connection.cursor() as cursor:
            forget_readers(cursor)

    def close(self) -> None:
        self._connection.close()
