"""Connections of a server and followers tell the table of readers once a second how far they are.

Blocking; called by one thread at a time, on a connection of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streams import database
from streams.reader_table import forget_readers, store_readers

__all__ = ["ReaderRows"]


class ReaderRows:
    """Writes rows of one kind of reader."""

    def __init__(self, kind: str, served_by: str, using: str) -> None:
        self._kind = kind
        self._served_by = served_by
        self._using = using
        self._connection: Any = None

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert or update the rows; those with a ``close_reason`` are closed by it. Raises the driver's errors."""
        if rows:
            self._do(lambda cursor: store_readers(cursor, self._kind, os.getpid(), rows, self._served_by))

    def forget_old(self) -> None:
        """Remove readers of any kind that nobody looks at any more."""
        self._do(forget_readers)

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            with contextlib.suppress(database.DatabaseError):  # it may be gone already
                self._connection.close()
            self._connection = None

    def _do(self, work: Callable[[Any], None]) -> None:
        if self._connection is None:
            self._connection = database.direct_connection(self._using, application_name="replsite readers")
        try:
            with self._connection.cursor() as cursor:
                work(cursor)
        except database.DatabaseError:
            self.close()
            raise
