"""The Spark data source ``replsite``: reads the facts of a stream as rows, and appends rows as facts. Needs no Django.

Facts can be read in batches and in micro-batches. For example:

    from pipeline.source.data_source import register
    register(spark)
    spark.readStream.format("replsite").option("dsn", DSN).option("stream", "events").load()

Options for reading:

* ``dsn``: libpq connection string.
* ``stream``: name. A stream recorded from a foreign server is ``NAME/stream``; its column ``row`` is JSON text.
* ``view``: ``writer`` (each writer's facts as soon as they are complete) or ``linear`` (in the order of IDs over all writers).
* ``maxRows``: rows of a micro-batch, default 100000; 0 for no limit.
* ``rowsPerPartition``: rows of a partition, default 50000.
* ``startingOffsets``: ``earliest``, ``latest`` or a JSON object ``{writer: position}``; only for a query without checkpoint.
* ``readerName``: name under which the live page shows the query.

Appending and its options are described in ``pipeline.source.write``.

An offset is the vector of stored positions, ``{writer: position}``. Facts up to a stored position are complete and
never change. So a batch that is repeated after a restart holds the same rows. The first offset names every writer of
the stream. Each later offset has all writers of the offset before it, and no position is lower than in the offset
before it.

An offset also holds the epoch of the database (``streams.epochs``), under a key that is no writer's name. After a
restore, new facts get the IDs of facts that were lost. So a checkpoint of another epoch is refused with
``EpochChanged``. For a stream in memory the offset also holds its generation. When a new generation begins, the query
continues at 0.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

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

from pipeline.connections import connect
from pipeline.source.filters import Condition, accepted, token_range, writers_of
from pipeline.source.offsets import PartitionRange, Range, Vector, cut_vector, pieces, stretches, within
from pipeline.source.options import ReadOptions, WriteOptions
from pipeline.source.positions import SourcePositions, known_positions
from pipeline.source.read_rows import ReadParameters, read_piece
from pipeline.source.reader_row import ReaderRow, store_reader
from pipeline.source.sql import cuts_sql
from pipeline.source.stream_schemas import chosen_columns, declaration_of, site_declarations, spark_schema
from streams.core.recorded import is_recorded
from streams.core.watermarks import trim_mark
from streams.db.long_transactions import NO_LIMITS_IN_SESSION
from streams.errors import EpochChanged
from streams.runtime.gc_pause import freeze_objects

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from streams.core.declaration import StreamDeclaration

__all__ = ["ReplsiteSource", "Vector", "cut_vector", "register"]

_HEARTBEAT_SECONDS = 1.0
#: Keys of the epoch and of the generation in an offset. They contain a blank, and names of writers cannot.
_EPOCH = "in epoch"
_LIFE = "in life"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Registers the format ``replsite`` with a session, and enables its filter pushdown.

    If Django was set up before, the format also reads streams that classes of the site's own program declare.
    """
    # Spark's processes load no Django. So the declarations travel with the class, which is pickled by value because no module
    # has it.
    spark.dataSource.register(
        type("ReplsiteSourceOfThisSite", (ReplsiteSource,), {"site_streams": site_declarations()})
    )
    spark.conf.set(_PUSHDOWN, "true")


class ReplsiteSource(DataSource):
    """The data source of one stream. The docstring of the module describes options and offsets."""

    #: Streams that are declared by classes of the site's program, by name.
    site_streams: ClassVar[Mapping[str, StreamDeclaration]] = {}

    @classmethod
    def name(cls) -> str:
        return "replsite"

    def schema(self) -> StructType:
        return spark_schema(declaration_of(ReadOptions.read(self.options).stream, self.site_streams))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(ReadOptions.read(self.options), schema, self.site_streams)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(ReadOptions.read(self.options), schema, self.site_streams)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pipeline.source.write import fact_writer  # noqa: PLC0415 - readers do not need it

        return fact_writer(WriteOptions.read(self.options), schema, overwrite=overwrite)


class _Facts:
    """The base class of the reader of batches and the reader of micro-batches.

    It holds the options, divides facts into partitions, and reads the facts in executors.
    """

    unbroken = False

    def __init__(
        self, options: ReadOptions, schema: StructType, site_streams: Mapping[str, StreamDeclaration] | None = None
    ) -> None:
        self.options = options
        self.declaration = declaration_of(options.stream, site_streams)
        names = chosen_columns(self.declaration, schema)
        of_site = (site_streams or {}).get(options.stream)
        self.reading = ReadParameters(options.dsn, options.stream, names, unbroken=self.unbroken, of_site=of_site)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition.value, PartitionRange):  # if there are no partitions, Spark passes one of its own
            yield from read_piece(self.reading, partition.value)
            freeze_objects()

    def cuts(
        self, cursor: Any, moved: Mapping[str, Range], limit: int | None = None, conditions: Sequence[Condition] = ()
    ) -> list[tuple[int, int]]:
        """Returns (row number, token) of the rows at which the facts are divided into partitions (see ``cuts_sql``)."""
        whole = pieces(moved, [])
        if not whole:
            return []
        cursor.execute(cuts_sql(self.declaration, whole[0], self.options.rows_per_partition, limit, conditions))
        found: list[tuple[int, int]] = cursor.fetchall()
        return found

    def partitions_at(self, moved: Mapping[str, Range], cuts: Sequence[tuple[int, int]]) -> list[InputPartition]:
        """Divides the ranges in ``moved`` into partitions.

        A partition ends after each row of ``cuts`` whose number is a multiple of ``rowsPerPartition``.
        """
        size = self.options.rows_per_partition
        return [InputPartition(piece) for piece in pieces(moved, [token for n, token in cuts if n % size == 0])]


class _BatchReader(_Facts, DataSourceReader):
    """A reader of all facts that pass the filters and are complete at the time when the query is planned."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        applied, left = accepted(filters, self.declaration)
        self.reading = replace(self.reading, conditions=tuple(applied))
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
    """A reader of micro-batches. A micro-batch has the facts between two vectors.

    All methods except ``read`` run in one Python process that Spark starts for the query, on the driver's machine. A
    micro-batch begins where the micro-batch before it ended. If facts of a micro-batch were trimmed before they were
    read, an error is raised.
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
            # "earliest": begin above the trimmed facts. Otherwise the first batch would raise ResyncNeeded.
            with self._cursor() as cursor:
                begin = dict(trim_mark(cursor, self.options.stream).writers)
        # Every writer gets an entry. A writer without one would be taken for a writer that joined after this offset.
        return self._stamped(dict.fromkeys(now.stored, 0) | begin, now)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_rows) if self.options.max_rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        now = self._ends_at or self._now()
        begin = self._continue_at(start, now)
        self._show(begin)  # Spark asks for the next end only when the batch before ``start`` is done
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
        if self._planned is not None and self._planned[:2] == (start, end):  # latestOffset has counted these rows
            return self.partitions_at(moved, self._planned[2])
        with self._cursor() as cursor:  # a batch that was planned before a restart of the query
            self._check(end, known_positions(cursor, self.declaration))
            return self.partitions_at(moved, self.cuts(cursor, moved))

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _moved(self, begin: Vector, end: Vector) -> dict[str, Range]:
        """Returns the range of facts to read for each writer whose position is higher in ``end`` than in ``begin``.

        In recorded streams and streams in memory, a writer that is missing in ``begin`` starts at 0.
        """
        return stretches(begin, end, from_zero=is_recorded(self.options.stream) or self.declaration.in_memory)

    def _stamped(self, vector: Mapping[str, int], now: SourcePositions) -> dict[str, Any]:
        """Returns an offset: the vector, with the epoch and the generation of ``now`` if they are not empty."""
        kept = {_EPOCH: now.epoch, _LIFE: now.life}
        return {**cut_vector({}, vector, None), **{key: word for key, word in kept.items() if word}}

    def _continue_at(self, offset: Mapping[str, Any], now: SourcePositions) -> Vector:
        """Returns the vector at which the query continues after the offset ``offset``. Raises ``EpochChanged``.

        If the offset belongs to an earlier generation, the vector is empty, because the new generation is read from 0.
        """
        self._check(offset, now)
        return _vector(offset) if offset.get(_LIFE, "") == now.life else {}

    def _check(self, offset: Mapping[str, Any], now: SourcePositions) -> None:
        """Raises ``EpochChanged`` if an offset does not fit the present state of the stream.

        There are two cases: the offset belongs to another epoch, or it has a position above the highest ID that the
        stream's sequence has given out.
        """
        kept = offset.get(_EPOCH)
        if kept is not None and kept != now.epoch:
            raise EpochChanged(
                f"The checkpoint of this query on stream {self.options.stream} is of epoch {kept}, but the database is in "
                f"epoch {now.epoch}: it was restored, so facts that were read may be gone, and their IDs may have other facts. "
                f"Remove the checkpoint and what was made from it, and start again."
            )
        if now.given_out is None:
            return
        # A sequence is at 900, and the query has read up to there. The sequence is set back to 850. Without this the query would
        # skip the next facts, 851 to 900.
        writer, position = max(_vector(offset).items(), key=itemgetter(1), default=("", 0))
        if position > max(now.given_out, 1):
            raise EpochChanged(
                f"This query begins behind position {position} of writer {writer} on stream {self.options.stream}, but the "
                f"stream's sequence has given out {now.given_out} only: it was set back or restored, or startingOffsets is of "
                f"another database. The next facts would be skipped. If check_streams finds the sequence wrong, repair that. "
                f"Otherwise remove the checkpoint and what was made from it, and begin anew."
            )

    def _cursor(self) -> Any:
        """Returns a cursor on the connection that is used for planning. If the connection was lost, opens a new one."""
        if self._connection is None or self._connection.closed:
            self._connection = _connect(self.options.dsn)
        return self._connection.cursor()

    def _now(self) -> SourcePositions:
        with self._cursor() as cursor:
            return known_positions(cursor, self.declaration)

    def _show(self, handled: Vector) -> None:
        """Stores the query's row for the live page.

        If the position has changed, the row is stored at once. Otherwise the row is stored once a second, as a
        heartbeat.
        """
        shown_at, shown = self._shown
        now = time.monotonic()
        if self.options.reader_name and (handled != shown or now - shown_at >= _HEARTBEAT_SECONDS):
            row = ReaderRow(self.options.reader_name, os.getpid(), {self.options.stream: dict(handled)})
            with self._cursor() as cursor:
                store_reader(cursor, row)
            self._shown = (now, dict(handled))


def _beyond(cuts: Sequence[tuple[int, int]], limit: int | None) -> int | None:
    """Returns the token before which a batch of at most ``limit`` rows ends. ``cuts`` has the rows of ``cuts_sql``.

    Returns None if there are at most ``limit`` rows. If the first fact has more than ``limit`` rows, the batch consists
    of this fact, because a fact is never divided.
    """
    tokens = dict(cuts)
    if limit is None or limit + 1 not in tokens:
        return None
    # If the first fact alone has more rows than the limit, both tokens are equal, and without "+ 1" the batch would be empty.
    return max(tokens[limit + 1], tokens[1] + 1)


def _vector(offset: Mapping[str, Any]) -> Vector:
    return {writer: position for writer, position in offset.items() if writer not in (_EPOCH, _LIFE)}


def _connect(dsn: str) -> Any:
    connection = connect(dsn, "replsite spark plans")
    connection.autocommit = True
    with connection.cursor() as cursor:
        # Force the index of IDs. The statistics of a table that has just grown say nothing about its newest rows.
        cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off")
        cursor.execute(NO_LIMITS_IN_SESSION)
    return connection
