"""Reads a piece of a stream in an executor, by PostgreSQL's binary COPY into Arrow batches. Needs no Django.

To connect takes as long as to read 30,000 rows, because the database driver queries all types. So a Python worker keeps
its connection open for its next piece. Spark ends idle workers after a minute. Memory is bounded by the size of a
batch, not by the size of the piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.connections import connect_arrow
from pipeline.source.filters import Condition, tables_of
from pipeline.source.literals import literal
from pipeline.source.offsets import PartitionRange
from pipeline.source.sql import rows_of_piece_sql
from pipeline.source.stream_schemas import arrow_schema, declaration_of
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed, lost_facts, trim_mark
from streams.db.long_transactions import NO_LIMITS_IN_SESSION

if TYPE_CHECKING:
    import pyarrow as pa

    from streams.core.declaration import StreamDeclaration

__all__ = ["ReadParameters", "read_piece"]

_BATCH_BYTES = 4 * 1024 * 1024
_RECEIVED = "received_at_ms"
#: Forces the index of IDs. The statistics of a table that has just grown say nothing about its newest rows.
_SESSION = (
    "SELECT set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false), "
    "set_config('jit', 'off', false), set_config('max_parallel_workers_per_gather', '0', false)"
)

#: The connection that this worker keeps, with its connection string. At most one entry.
_kept: list[tuple[str, Any]] = []


@dataclass(frozen=True, slots=True)
class ReadParameters:
    """The parameters for reading a stream, the same for all pieces. If ``unbroken`` is true, trimmed facts are an error.

    If a class of the site declares the stream, ``of_site`` is its declaration. Otherwise ``of_site`` is None.
    """

    dsn: str
    stream: str
    names: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    unbroken: bool = False
    of_site: StreamDeclaration | None = None

    @property
    def declaration(self) -> StreamDeclaration:
        return self.of_site or declaration_of(self.stream)


def read_piece(reading: ReadParameters, piece: PartitionRange) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a piece as Arrow batches, table by table. Within a table, tokens ascend.

    If ``reading.unbroken`` is true and facts of the piece were trimmed, raises ``ResyncNeeded`` after the last row.
    """
    declaration = reading.declaration
    schema = arrow_schema(declaration, reading.names)
    with _connection(reading.dsn) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)})
        for table in tables_of(reading.conditions, declaration):
            cursor.execute(rows_of_piece_sql(declaration, table, piece, reading.names, reading.conditions))
            for batch in cursor.fetch_record_batch():
                yield _as_declared(batch, schema, table.name)
        # Checked after the rows were read: if facts were trimmed meanwhile, the low-water mark shows it now.
        if reading.unbroken:
            _check_whole(_Inlined(cursor), reading.stream, piece)


@contextmanager
def _connection(dsn: str) -> Iterator[Any]:
    """Yields the worker's connection. If the block ends without an error, keeps the connection open for the next piece."""
    kept_dsn, connection = _kept.pop() if _kept else ("", None)
    if connection is not None and not (kept_dsn == dsn and _answers(connection)):
        connection.close()
        connection = None
    connection = connection or _connect(dsn)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    _kept.append((dsn, connection))


def _answers(connection: Any) -> bool:
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - executors only

    try:
        _ask(connection, "SELECT 1")
    except dbapi.Error:  # PostgreSQL was restarted, or ended the session
        return False
    return True


def _connect(dsn: str) -> Any:
    connection = connect_arrow(dsn, "replsite spark reads", autocommit=True)
    for statement in (_SESSION, NO_LIMITS_IN_SESSION):
        _ask(connection, statement)
    return connection


def _ask(connection: Any, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        cursor.fetchall()


def _as_declared(batch: pa.RecordBatch, schema: pa.Schema, table: str) -> pa.RecordBatch:
    """Converts a batch of rows of a table to a batch with exactly the columns of the schema.

    Columns that the table does not have are null. Times are converted to milliseconds.
    """
    import pyarrow as pa  # noqa: PLC0415 - executors only

    found = dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays: list[Any] = []
    for field in schema:
        column = found.get(field.name)
        if field.name == "fact_table":
            column = pa.repeat(pa.scalar(table, pa.string()), batch.num_rows)
        elif column is None:
            column = pa.nulls(batch.num_rows, field.type)
        elif field.name == _RECEIVED:
            column = _milliseconds(column)
        arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _milliseconds(column: pa.Array) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - executors only
    from pyarrow import compute  # noqa: PLC0415

    microseconds = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return compute.divide(microseconds, 1000)


def _check_whole(cursor: Any, stream: str, piece: PartitionRange) -> None:
    mark = trim_mark(cursor, stream)
    for bound in piece.bounds:
        after = VectorToken(bound.after)
        for writer in bound.writers:
            if lost_facts(mark, after, writer):
                check_not_trimmed(cursor, stream, after, writer)


class _Inlined:
    """An adapter for the cursor of the bulk driver. It inserts named parameters into the statement as literals.

    The bulk driver does not support named parameters.
    """

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, statement: str, parameters: Mapping[str, str]) -> None:
        self._cursor.execute(statement % {name: literal(value) for name, value in parameters.items()})

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> Sequence[Any]:
        found: Sequence[Any] = self._cursor.fetchall()
        return found
