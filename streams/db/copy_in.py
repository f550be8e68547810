"""Copies rows into a table by ``COPY … FROM STDIN``, with a cursor of either driver or of Django. Needs no Django."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

_BYTES_PER_READ = 256 * 1024


def copy_in(cursor: Any, statement: str, pieces: Iterable[bytes]) -> None:
    """Executes a ``COPY … FROM STDIN`` statement. Its content is ``pieces``, one piece after the other."""
    # Django's cursors convert errors of other statements only.
    with cursor.db.wrap_database_errors if hasattr(cursor, "db") else nullcontext():
        if hasattr(cursor, "copy_expert"):  # psycopg2
            cursor.copy_expert(statement, _File(pieces), _BYTES_PER_READ)
            return
        with cursor.copy(statement) as copy:
            for piece in pieces:
                copy.write(piece)


class _File:
    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Returns the next bytes, at most ``size``. Returns no bytes at the end."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._left = memoryview(piece)
        some, self._left = self._left[:size], self._left[size:]
        return bytes(some)
