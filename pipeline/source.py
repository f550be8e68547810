"""The Spark data source ``replsite``: a stream's facts as rows, in batch and in micro-batches. No Django.

    from pipeline.source import register
    register(spark)
    spark.readStream.format("replsite").option("dsn", DSN).option("stream", "events").load()

Options: ``dsn`` (libpq), ``stream``, ``maxRows`` (facts a micro-batch, default 100000; 0: no limit), ``startingOffsets`` (a
JSON object ``{writer: position}``, ``earliest`` or ``latest``; only for a query without checkpoint), ``readerName`` (shows
the query on the live page). A stream of a recorded foreign server is called ``NAME/stream``; its column ``row`` is JSON text.

The offset is the vector of stored positions ``{writer: position}``. A stored position covers complete facts only, and
facts below it never change, so a batch that is repeated after a restart holds the same rows. A writer that joins is
read from position 0; none ever leaves the vector, and no entry goes back.

With the vector stands the epoch of the database (``streams.epochs``), under a key that is no writer's name: a checkpoint of
before the database was restored is refused with ``EpochChanged`` instead of skipping the facts that took its IDs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg2
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pipeline.reader_rows import ReaderRow, store_reader
from pipeline.schemas import declaration_of, fact_columns, spark_schema
from streams.errors import EpochChanged
from streams.queries import NEWEST_EPOCH, STORED_POSITIONS, bounds_sql, order_sql, rows_sql, token_sql
from streams.recorded import RECORDED_POSITIONS, is_recorded, recorded_names
from streams.tokens import VectorToken
from streams.trim_marks import check_not_trimmed, trim_mark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from streams.declaration import FactTable, StreamDeclaration

__all__ = ["ReplsiteSource", "Vector", "cut_vector", "register"]

Vector = dict[str, int]
DEFAULT_MAX_ROWS = 100_000
_ROWS_PER_ARROW_BATCH = 10_000
_HEARTBEAT_SECONDS = 1.0
#: Key of the epoch in an offset: a writer's name has no blank.
_EPOCH = "in epoch"


def register(spark: SparkSession) -> None:
    """Make the format ``replsite`` known to a session."""
    spark.dataSource.register(ReplsiteSource)


@dataclass(frozen=True, slots=True)
class _Options:
    dsn: str
    stream: str
    max_rows: int
    starting_offsets: str
    reader_name: str

    @classmethod
    def read(cls, options: Mapping[str, str]) -> _Options:
        missing = [name for name in ("dsn", "stream") if not options.get(name)]
        if missing:
            raise ValueError(f"the source 'replsite' needs the option {' and '.join(missing)}")
        return cls(
            dsn=options["dsn"],
            stream=options["stream"],
            max_rows=int(options.get("maxRows") or DEFAULT_MAX_ROWS),
            starting_offsets=options.get("startingOffsets") or "earliest",
            reader_name=options.get("readerName") or "",
        )


class ReplsiteSource(DataSource):
    """Facts of one stream; see the module for options and offsets."""

    @classmethod
    def name(cls) -> str:
        return "replsite"

    def schema(self) -> StructType:
        return spark_schema(declaration_of(_Options.read(self.options).stream))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(_Options.read(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(_Options.read(self.options))


@dataclass
class _Range(InputPartition):
    """Rows of one writer in one range; holds everything that an executor needs."""

    writer: str
    after: int
    upto: int


class _Facts:
    """What both readers share: the declaration and reading a range in an executor."""

    def __init__(self, options: _Options) -> None:
        self.options = options
        self.declaration = declaration_of(options.stream)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Range)  # noqa: S101 - what partitions() made
        columns = list(fact_columns(self.declaration))
        connection = _connect(self.options.dsn, "reads")
        try:
            for table in self.declaration.tables:
                yield from _rows_of(connection, self.declaration, table, columns, partition)
            self.check(connection, partition)
        finally:
            connection.close()

    def check(self, connection: Any, partition: _Range) -> None:
        """Called after the rows of a range were read; a batch takes what is there."""


def _rows_of(
    connection: Any, declaration: StreamDeclaration, table: FactTable, columns: Sequence[str], partition: _Range
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - executors only

    from pipeline.schemas import arrow_schema  # noqa: PLC0415

    schema = arrow_schema(declaration)
    own = [column.name for column in table.stored]
    wanted = {"after": partition.after, "upto": partition.upto, "writer": partition.writer, "limit": None}
    with connection.cursor(name="replsite_rows") as cursor:
        cursor.itersize = _ROWS_PER_ARROW_BATCH
        cursor.execute(rows_sql(declaration, table, of_writer=True, stored=True), wanted)
        while rows := cursor.fetchmany(_ROWS_PER_ARROW_BATCH):
            tokens, writers, times, *values = zip(*rows, strict=True)
            found = dict(zip(own, values, strict=True))
            arrays = [
                pa.array([table.name] * len(rows)),
                pa.array(tokens, pa.int64()),
                pa.array(writers),
                pa.array([int(moment.timestamp() * 1000) for moment in times], pa.int64()),
                *(_array(found.get(name), schema.field(name).type, len(rows)) for name in columns),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any] | None, kind: pa.DataType, count: int) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - executors only

    if values is None:
        return pa.nulls(count, kind)
    if pa.types.is_string(kind):
        values = [json.dumps(value) if isinstance(value, dict | list) else value for value in values]
    return pa.array(values, kind)


class _BatchReader(_Facts, DataSourceReader):
    """Every complete fact at the time of planning."""

    def partitions(self) -> Sequence[InputPartition]:
        return _ranges({}, _stored_vector(self.options))


class _StreamReader(_Facts, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches between vectors. The methods but ``read`` run in one long-lived process beside the driver."""

    _connection: Any = None
    _target: Vector | None = None
    _shown: tuple[float, Vector] = (0.0, {})

    def initialOffset(self) -> dict[str, Any]:
        where = self.options.starting_offsets
        if where == "earliest":
            with self._cursor() as cursor:
                return self._stamped(trim_mark(cursor, self.options.stream).writers)
        return self._stamped(self._stored() if where == "latest" else self._vector(json.loads(where)))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_rows) if self.options.max_rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = self._vector(start)
        self._show(begin)
        target = self._stored() if self._target is None else self._target
        cut = None
        if isinstance(limit, ReadMaxRows):
            cut = self._token_beyond(begin, target, limit.max_rows)
        return self._stamped(cut_vector(begin, target, cut))

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._stamped(self._stored() if self._target is None else self._target)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._stored()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _ranges(self._vector(start), self._vector(end))

    def _stamped(self, vector: Mapping[str, int]) -> dict[str, Any]:
        """An offset to keep; as plain as ever while the database knows no epoch."""
        epoch = self._epoch()
        return {**_sorted(vector), **({_EPOCH: epoch} if epoch else {})}

    def _vector(self, offset: Mapping[str, Any]) -> Vector:
        """The positions of an offset; raises ``EpochChanged`` for one of before the database was restored."""
        kept, now = offset.get(_EPOCH), self._epoch() if _EPOCH in offset else None
        if kept != now:
            raise EpochChanged(
                f"The checkpoint of this query on stream {self.options.stream} is of epoch {kept}, but the database is in "
                f"epoch {now}: it was restored, so facts that were read may be gone and others stand under their IDs. "
                f"Remove the checkpoint and what was made from it, and begin anew."
            )
        return {writer: position for writer, position in offset.items() if writer != _EPOCH}

    def _epoch(self) -> str:
        with self._cursor() as cursor:
            cursor.execute(NEWEST_EPOCH)
            row = cursor.fetchone()
        return row[0] if row else ""

    def check(self, connection: Any, partition: _Range) -> None:
        """A micro-batch goes on where the last one ended: facts in between that were trimmed must not be missing silently."""
        with connection.cursor() as cursor:
            check_not_trimmed(cursor, self.options.stream, VectorToken(partition.after), partition.writer)

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _cursor(self) -> Any:
        """A cursor of the planning connection, which is opened again after it was lost."""
        if self._connection is None or self._connection.closed:
            self._connection = _connect(self.options.dsn, "plans")
        return self._connection.cursor()

    def _stored(self) -> Vector:
        with self._cursor() as cursor:
            return _vector(cursor, self.options.stream)

    def _token_beyond(self, start: Vector, target: Vector, limit: int) -> int | None:
        """The token of the first row beyond ``limit`` rows of the range, counted over all writers; None: there is none."""
        moved = {writer: position for writer, position in target.items() if position > start.get(writer, 0)}
        if not moved:
            return None
        after = min(start.get(writer, 0) for writer in moved)
        bounds = {
            "writers": list(moved),
            "starts": [start.get(writer, 0) for writer in moved],
            "ends": list(moved.values()),
            "after": after,
            "upto": max(moved.values()),
            "limit": limit,
        }
        with self._cursor() as cursor:
            cursor.execute(_beyond_sql(self.declaration), bounds)
            row = cursor.fetchone()
        return None if row is None else row[0]

    def _show(self, handled: Vector) -> None:
        """Keep the row on the live page: at once when the position moved, else as a sign of life."""
        shown_at, shown = self._shown
        now = time.monotonic()
        if self.options.reader_name and (handled != shown or now - shown_at >= _HEARTBEAT_SECONDS):
            row = ReaderRow(self.options.reader_name, os.getpid(), {self.options.stream: dict(handled)})
            with self._cursor() as cursor:
                store_reader(cursor, row)
            self._shown = (now, dict(handled))


def cut_vector(start: Mapping[str, int], target: Mapping[str, int], beyond: int | None) -> Vector:
    """Where a batch ends: every writer at its target, but below ``beyond``; no entry is lost or goes back."""
    end = dict(start)
    for writer, position in target.items():
        reached = position if beyond is None else min(position, beyond - 1)
        end[writer] = max(reached, start.get(writer, 0))
    return _sorted(end)


def _sorted(vector: Mapping[str, int]) -> Vector:
    """Spark compares offsets as text, so equal vectors must be written alike."""
    return dict(sorted(vector.items()))


def _ranges(start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
    moved = [(writer, start.get(writer, 0), upto) for writer, upto in end.items() if upto > start.get(writer, 0)]
    return [_Range(writer, after, upto) for writer, after, upto in moved]


def _beyond_sql(declaration: StreamDeclaration) -> str:
    """Token of the row after ``limit`` rows in order of tokens, over all tables."""
    selects = [f"({_bounded_sql(declaration, table)})" for table in declaration.tables]
    return f"SELECT token FROM ({' UNION ALL '.join(selects)}) AS facts ORDER BY token OFFSET %(limit)s LIMIT 1"


def _bounded_sql(declaration: StreamDeclaration, table: FactTable) -> str:
    """Tokens of one table that lie in their writer's range, in order, one more than ``limit``."""
    token = token_sql(declaration, table)
    return (
        f"SELECT {token} AS token FROM {table.name} t "
        f"JOIN unnest(%(writers)s::text[], %(starts)s::bigint[], %(ends)s::bigint[]) AS b(of_writer, first, last) "
        f"ON t.{table.writer_column} = b.of_writer AND {token} > b.first AND {token} <= b.last "
        f"WHERE {bounds_sql(declaration, table)} ORDER BY {order_sql(declaration, table)} LIMIT %(limit)s + 1"
    )


def _connect(dsn: str, job: str) -> Any:
    connection = psycopg2.connect(dsn, application_name=f"replsite spark {job}", connect_timeout=10)
    if job == "plans":
        connection.autocommit = True
    return connection


def _vector(cursor: Any, stream: str) -> Vector:
    if is_recorded(stream):
        cursor.execute(RECORDED_POSITIONS, recorded_names(stream))
    else:
        cursor.execute(STORED_POSITIONS, {"streams": [stream]})
    return {row[1]: row[2] for row in cursor.fetchall()}


def _stored_vector(options: _Options) -> Vector:
    connection = _connect(options.dsn, "plans")
    try:
        with connection.cursor() as cursor:
            return _vector(cursor, options.stream)
    finally:
        connection.close()
