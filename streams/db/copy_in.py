"""Copies rows into a table by ``COPY … FROM STDIN``, with a cursor of either driver or of Django. Needs no Django."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, repeat
from struct import Struct
from typing import Any

_BYTES_PER_READ = 256 * 1024
_ROWS_PER_PIECE = 1_000
_HEADER, _TRAILER = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_VARCHAR = 1043  # object ID of the type, the same on every server
_short, _length, _array = (Struct(form).pack for form in (">h", ">i", ">5i"))


def copy_rows(cursor: Any, table: str, types: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
    """Inserts rows. ``types`` has the type of each column, as the table has it: no value is converted."""
    copy_in(cursor, f"COPY {table} ({', '.join(types)}) FROM STDIN (FORMAT BINARY)", _binary(rows, types.values()))


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


def varchar_array(values: Sequence[str]) -> bytes:
    """Returns a value of the type ``varchar[]`` in PostgreSQL's binary format."""
    return _array(1, 0, _VARCHAR, len(values), 1) + b"".join(map(_text, values))


def _sized(content: bytes) -> bytes:
    return _length(len(content)) + content


def _text(value: str) -> bytes:
    content = value.encode()
    return _length(len(content)) + content


_bigint = partial(Struct(">iq").pack, 8)
#: Type -> makes a value in PostgreSQL's binary format, with its length before it.
_ENCODERS: Mapping[str, Callable[[Any], bytes]] = {
    "bigint": _bigint,
    "boolean": partial(Struct(">i?").pack, 1),
    "bytea": _sized,
    "integer": partial(Struct(">ii").pack, 4),
    "smallint": partial(Struct(">ih").pack, 2),
    "text": _text,
    "timestamptz": lambda value: _bigint((value - _EPOCH) // timedelta(microseconds=1)),
    "varchar[]": lambda values: _sized(varchar_array(values)),
}


def _binary(rows: Sequence[Sequence[Any]], types: Iterable[str]) -> Iterator[bytes]:
    encoders = [_ENCODERS[name] for name in types]
    yield _HEADER
    for first in range(0, len(rows), _ROWS_PER_PIECE):
        columns = [
            [_NULL if value is None else encode(value) for value in column]
            for encode, column in zip(encoders, zip(*rows[first : first + _ROWS_PER_PIECE], strict=True), strict=True)
        ]
        yield b"".join(chain.from_iterable(zip(repeat(_short(len(encoders))), *columns, strict=False)))
    yield _TRAILER


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
