"""Copies Arrow batches into a table by binary COPY, as one statement. Runs in Spark's executors, without Django."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from streams.db.copy_in import copy_in, varchar_array

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["copy_batches", "varchar_arrays"]


def copy_batches(cursor: Any, table: str, batches: Iterable[pa.RecordBatch]) -> None:
    """Inserts the rows of batches. All batches must have the same schema, whose fields are named like columns of the table.

    One statement inserts all rows, so statement-level triggers run once. Does nothing if there are no batches.
    """
    rest = iter(batches)
    first = next(rest, None)
    if first is not None:
        columns = ", ".join(first.schema.names)
        copy_in(cursor, f"COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)", _encoded(first, rest))


def _encoded(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    import pgpq  # noqa: PLC0415 - only where rows are written

    encoder = pgpq.ArrowToPostgresBinaryEncoder(first.schema)
    yield encoder.write_header()
    for batch in chain([first], rest):
        yield encoder.write_batch(batch)
    yield encoder.finish()


def varchar_arrays(values: pa.Array) -> pa.Array:
    """Converts lists of strings to PostgreSQL's binary format for ``varchar[]``.

    The encoder would write such lists as ``text[]``. COPY does not accept ``text[]`` for a column of type
    ``varchar[]``.
    """
    import pyarrow as pa  # noqa: PLC0415 - executors only

    return pa.array([varchar_array(some) for some in values.to_pylist()], pa.binary())
