"""The Spark data source ``replsite``: a stream's facts as rows, in batch and in micro-batches, and appended. No Django.

    from pipeline.source.data_source import register
    register(spark)
    spark.readStream.format("replsite").option("dsn", DSN).option("stream", "events").load()

Options of reading: ``dsn`` (libpq), ``stream``, ``view`` (``writer``: each writer's facts as soon as they are complete;
``linear``: in the order of IDs over all writers), ``maxRows`` (rows a micro-batch, default 100000; 0: no limit),
``rowsPerPartition`` (default 50000), ``startingOffsets`` (a JSON object ``{writer: position}``, ``earliest`` or ``latest``; only
for a query without checkpoint), ``readerName`` (shows the query on the live page). A stream of a recorded foreign server is
called ``NAME/stream``; its column ``row`` is JSON text. Appending is told in ``pipeline.source.write``.

The offset is the vector of stored positions ``{writer: position}``. A stored position covers complete facts only, and
facts below it never change, so a batch that is repeated after a restart holds the same rows. The first offset names every
writer there is, so one that is missing joined later. None ever leaves the vector, and no entry goes back.

With the vector stand, under keys that are no writers' names, the epoch of the database (``streams.epochs``), so that a
checkpoint of before the database was restored is refused with ``EpochChanged`` instead of skipping the facts that took its IDs;
and for a stream in memory its life: when that has begun anew, so does the reader, at 0.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import psycopg2
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pipeline.source.filters import Condition, accepted, token_range, writers_of
from pipeline.source.offsets import Piece, Stretch, Vector, cut_vector, pieces, stretches, within
from pipeline.source.options import ReadOptions, WriteOptions
from pipeline.source.positions import SourcePositions, known_positions
from pipeline.source.read_rows import Reading, read_piece
from pipeline.source.reader_row import ReaderRow, store_reader
from pipeline.source.schemas import chosen_columns, declaration_of, spark_schema
from pipeline.source.sql import cuts_sql
from streams.core.recorded import is_recorded
from streams.core.watermarks import trim_mark
from streams.db.long_transactions import NO_LIMITS_IN_SESSION
from streams.errors import EpochChanged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["ReplsiteSource", "Vector", "cut_vector", "register"]

_HEARTBEAT_SECONDS = 1.0
#: Keys of the epoch and of the life in an offset: a writer's name has no blank.
_EPOCH = "in epoch"
_LIFE = "in life"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make the format ``replsite`` known to a session, which then leaves filters to it."""
    spark.dataSource.register(ReplsiteSource)
    spark.conf.set(_PUSHDOWN, "true")


class ReplsiteSource(DataSource):
    """Facts of one stream; see the module for options and offsets."""

    @classmethod
    def name(cls) -> str:
        return "replsite"

    def schema(self) -> StructType:
        return spark_schema(declaration_of(ReadOptions.read(self.options).stream))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(ReadOptions.read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(ReadOptions.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pipeline.source.write import fact_writer  # noqa: PLC0415 - readers do not need it

        return fact_writer(WriteOptions.read(self.options), schema, overwrite=overwrite)


class _Facts:
    """What both readers share: the options, the columns, and reading a piece in an executor."""

    unbroken = False

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.declaration = declaration_of(options.stream)
        names = chosen_columns(self.declaration, schema)
        self.reading = Reading(options.dsn, options.stream, names, unbroken=self.unbroken)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition.value, Piece):  # Spark makes a partition of its own where there is none
            yield from read_piece(self.reading, partition.value)
            _leave_to_itself()

    def cuts(
        self, cursor: Any, moved: Mapping[str, Stretch], limit: int | None = None, conditions: Sequence[Condition] = ()
    ) -> list[tuple[int, int]]:
        """(number, token) of the rows that end partitions, of the first row, and of the first beyond ``limit``."""
        whole = pieces(moved, [])
        if not whole:
            return []
        cursor.execute(cuts_sql(self.declaration, whole[0], self.options.rows_per_partition, limit, conditions))
        found: list[tuple[int, int]] = cursor.fetchall()
        return found

    def partitions_at(self, moved: Mapping[str, Stretch], cuts: Sequence[tuple[int, int]]) -> list[InputPartition]:
        """The stretches as partitions, cut at those of the rows that end one."""
        size = self.options.rows_per_partition
        return [InputPartition(piece) for piece in pieces(moved, [token for n, token in cuts if n % size == 0])]


@cache
def _leave_to_itself() -> None:
    """Once in a worker: Spark's daemon collects garbage after every task, over all that was ever imported.

    That took more than the reading of 50,000 rows; what is here now stays for the worker's life anyway.
    """
    gc.freeze()


class _BatchReader(_Facts, DataSourceReader):
    """Every complete fact at the time of planning that passes the filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        taken, left = accepted(filters, self.declaration)
        self.reading = replace(self.reading, conditions=tuple(taken))
        return iter(left)

    def partitions(self) -> Sequence[InputPartition]:
        conditions = self.reading.conditions
        connection = _connect(self.options.dsn)
        try:
            with connection.cursor() as cursor:
                target = known_positions(cursor, self.declaration).target(linear=self.options.linear)
                moved = within(stretches({}, target), *token_range(conditions))
                moved = {writer: moved[writer] for writer in writers_of(conditions, moved)}
                return self.partitions_at(moved, self.cuts(cursor, moved, None, conditions))
        finally:
            connection.close()


class _StreamReader(_Facts, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches between vectors. The methods but ``read`` run in one long-lived process beside the driver.

    A micro-batch goes on where the last one ended, so facts in between that were trimmed must not be missing silently.
    """

    unbroken = True
    _connection: Any = None
    _ends_at: SourcePositions | None = None
    _planned: tuple[dict[str, Any], dict[str, Any], list[tuple[int, int]]] | None = None
    _shown: tuple[float, Vector] = (0.0, {})

    def initialOffset(self) -> dict[str, Any]:
        now = self._now()
        begin = self.options.starting_vector
        if self.options.starting_offsets == "latest":
            begin = now.target(linear=self.options.linear)
        elif begin is None:
            with self._cursor() as cursor:
                begin = dict(trim_mark(cursor, self.options.stream).writers)
        return self._stamped(dict.fromkeys(now.stored, 0) | begin, now)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_rows) if self.options.max_rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        now = self._ends_at or self._now()
        begin = self._begin(start, now)
        self._show(begin)
        target = now.target(linear=self.options.linear)
        moved = self._moved(begin, target)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with self._cursor() as cursor:
            cuts = self.cuts(cursor, moved, rows)
        end = self._stamped(cut_vector(begin, target, _beyond(cuts, rows)), now)
        self._planned = (start, end, cuts)
        return end

    def reportLatestOffset(self) -> dict[str, Any]:
        now = self._ends_at or self._now()
        return self._stamped(now.target(linear=self.options.linear), now)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends_at = self._now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        moved = self._moved(_vector(start) if start.get(_LIFE) == end.get(_LIFE) else {}, _vector(end))
        if self._planned is not None and self._planned[:2] == (start, end):
            return self.partitions_at(moved, self._planned[2])
        with self._cursor() as cursor:  # a batch of before a restart
            self._check_epoch(end, known_positions(cursor, self.declaration))
            return self.partitions_at(moved, self.cuts(cursor, moved))

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _moved(self, begin: Vector, end: Vector) -> dict[str, Stretch]:
        """In lives of their own, writers begin at 0."""
        return stretches(begin, end, from_zero=is_recorded(self.options.stream) or self.declaration.in_memory)

    def _stamped(self, vector: Mapping[str, int], now: SourcePositions) -> dict[str, Any]:
        """An offset to keep; as plain as can be."""
        kept = {_EPOCH: now.epoch, _LIFE: now.life}
        return {**cut_vector({}, vector, None), **{key: word for key, word in kept.items() if word}}

    def _begin(self, offset: Mapping[str, Any], now: SourcePositions) -> Vector:
        """The positions of an offset: none of an earlier life. Raises ``EpochChanged``."""
        self._check_epoch(offset, now)
        return _vector(offset) if offset.get(_LIFE, "") == now.life else {}

    def _check_epoch(self, offset: Mapping[str, Any], now: SourcePositions) -> None:
        kept = offset.get(_EPOCH)
        if kept is not None and kept != now.epoch:
            raise EpochChanged(
                f"The checkpoint of this query on stream {self.options.stream} is of epoch {kept}, but the database is in "
                f"epoch {now.epoch}: it was restored, so facts that were read may be gone and others stand under their IDs. "
                f"Remove the checkpoint and what was made from it, and begin anew."
            )

    def _cursor(self) -> Any:
        """A cursor of the planning connection, which is opened again after it was lost."""
        if self._connection is None or self._connection.closed:
            self._connection = _connect(self.options.dsn)
        return self._connection.cursor()

    def _now(self) -> SourcePositions:
        with self._cursor() as cursor:
            return known_positions(cursor, self.declaration)

    def _show(self, handled: Vector) -> None:
        """Keep the row on the live page: at once when the position moved, else as a sign of life."""
        shown_at, shown = self._shown
        now = time.monotonic()
        if self.options.reader_name and (handled != shown or now - shown_at >= _HEARTBEAT_SECONDS):
            row = ReaderRow(self.options.reader_name, os.getpid(), {self.options.stream: dict(handled)})
            with self._cursor() as cursor:
                store_reader(cursor, row)
            self._shown = (now, dict(handled))


def _beyond(cuts: Sequence[tuple[int, int]], limit: int | None) -> int | None:
    """The token that a batch of ``limit`` rows ends below; a first fact of more rows than that goes alone, as a whole."""
    tokens = dict(cuts)
    if limit is None or limit + 1 not in tokens:
        return None
    return max(tokens[limit + 1], tokens[1] + 1)


def _vector(offset: Mapping[str, Any]) -> Vector:
    return {writer: position for writer, position in offset.items() if writer not in (_EPOCH, _LIFE)}


def _connect(dsn: str) -> Any:
    connection = psycopg2.connect(dsn, application_name="replsite spark plans", connect_timeout=10)
    connection.autocommit = True
    with connection.cursor() as cursor:  # statistics of a table that has just grown say nothing about its end
        cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off")
        cursor.execute(NO_LIMITS_IN_SESSION)
    return connection
