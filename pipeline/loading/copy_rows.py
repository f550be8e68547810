"""Copies Arrow batches into a table by binary COPY, as one statement. Runs in Spark's executors, without Django."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["copy_batches", "varchar_arrays"]

_BYTES_PER_READ = 256 * 1024
_VARCHAR = 1043  # object ID of the type, the same on every server
_EMPTY_ARRAY = struct.pack(">iii", 0, 0, _VARCHAR)
_LENGTH = struct.Struct(">i")


def copy_batches(cursor: Any, table: str, batches: Iterable[pa.RecordBatch]) -> None:
    """Inserts the rows of batches. All batches must have the same schema, whose fields are named like columns of the table.

    One statement inserts all rows, so statement-level triggers run once. Does nothing if there are no batches.
    """
    rest = iter(batches)
    first = next(rest, None)
    if first is not None:
        columns = ", ".join(first.schema.names)
        content = _Content(_encoded(first, rest))
        cursor.copy_expert(f"COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)", content, _BYTES_PER_READ)


def _encoded(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    import pgpq  # noqa: PLC0415 - only where rows are written

    encoder = pgpq.ArrowToPostgresBinaryEncoder(first.schema)
    yield encoder.write_header() + encoder.write_batch(first)
    for batch in rest:
        yield encoder.write_batch(batch)
    yield encoder.finish()


class _Content:
    """A file object that COPY reads once. The content of the file is ``pieces``, one piece after the other."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Returns the next bytes of the content, at most ``size`` bytes. Returns no bytes at the end of the content."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._left = memoryview(piece)
        some, self._left = self._left[:size], self._left[size:]
        return bytes(some)


def varchar_arrays(values: pa.Array) -> pa.Array:
    """Converts lists of strings to PostgreSQL's binary format for ``varchar[]``.

    The encoder would write such lists as ``text[]``. COPY does not accept ``text[]`` for a column of type
    ``varchar[]``.
    """
    import pyarrow as pa  # noqa: PLC0415 - executors only

    return pa.array([_varchar_array(some) for some in values.to_pylist()], pa.binary())


def _varchar_array(values: Sequence[str]) -> bytes:
    if not values:
        return _EMPTY_ARRAY
    parts = [struct.pack(">iiiii", 1, 0, _VARCHAR, len(values), 1)]
    for value in values:
        content = value.encode()
        parts += (_LENGTH.pack(len(content)), content)
    return b"".join(parts)
