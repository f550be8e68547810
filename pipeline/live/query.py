"""One query of the live pipeline: from its streams, micro-batch by micro-batch, into tables that are kept current.

What Spark makes of a batch is found first; then one short transaction takes the batch in the ledger and writes its effect. A
query begins where its tables are, with a checkpoint of its own for each start: nothing depends on files.

Runs in the driver, with Django. Spark calls ``_apply`` in a thread of its own, one batch after another.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from django.db import connections, transaction

from pipeline.live.ledger import BatchOffsets, Vectors, read_offsets, take_batch
from pipeline.source.data_source import register
from pipeline.source.reader_row import ReaderRow, store_reader
from pipeline.source.schemas import declaration_of, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["LiveQuery", "Place", "Table"]


class Table(Protocol):
    """What a query keeps current."""

    @property
    def name(self) -> str:
        """Of the query, its ledger and its checkpoint."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Whose facts it takes, in this order."""

    @property
    def max_rows(self) -> int:
        """Most rows of a stream in a batch."""

    @property
    def shown_as(self) -> str:
        """Name of the reader on the live page; empty: it has a row of its own."""

    def begin(self, cursor: Any) -> Vectors:
        """Where the tables are, and so the ledger."""

    def columns(self, stream: str) -> tuple[str, ...]:
        """What is read of a stream's facts; the others stay where they are."""

    def rows(self, stream: str, facts: DataFrame) -> DataFrame:
        """What becomes of the facts; the same columns for every stream."""

    def find(self, batch: DataFrame) -> Any:
        """What Spark makes of a batch; the only place where Spark works. No transaction is open."""

    def write(self, cursor: Any, found: Any, offsets: BatchOffsets) -> None:
        """The effect, in the transaction in which the batch is taken."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a query finds its facts and keeps its log."""

    dsn: str
    using: str
    checkpoints: Path


class LiveQuery:
    """A query; `start` it once."""

    def __init__(self, table: Table, place: Place) -> None:
        self.table = table
        self._place = place
        self._checkpoint = place.checkpoints / table.name
        self._first: Vectors = {}

    def start(self, spark: SparkSession, trigger: Mapping[str, Any]) -> StreamingQuery:
        """Begin where the tables are. Blocks no longer than Spark takes to start the query."""
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        with connections[self._place.using].cursor() as cursor:
            self._first = self.table.begin(cursor)
            self._show(cursor, self._first)
        parts = [self._facts(spark, stream) for stream in self.table.streams]
        facts = parts[0]
        for part in parts[1:]:
            facts = facts.union(part)
        writer = facts.writeStream.queryName(self.table.name).option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**trigger).foreachBatch(self._apply).start()

    def _facts(self, spark: SparkSession, stream: str) -> DataFrame:
        begin = json.dumps(self._first.get(stream, {}), sort_keys=True)
        known, wanted = spark_schema(declaration_of(stream)), set(self.table.columns(stream))
        # Spark's threads write into a map that belongs to the registration: two queries that begin at once spoil a shared one,
        # and every task fails from then on (OptionalDataException). So each source has its own, and each new start a new one.
        register(spark)
        facts = (
            spark.readStream.format("replsite")
            .schema(type(known)([field for field in known.fields if field.name in wanted]))
            .options(dsn=self._place.dsn, stream=stream, startingOffsets=begin, maxRows=str(self.table.max_rows))
            .load()
        )
        return self.table.rows(stream, facts)

    def _apply(self, batch: DataFrame, batch_id: int) -> None:
        offsets = read_offsets(self._checkpoint, batch_id, self.table.streams, self._first)
        found = self.table.find(batch)
        using = self._place.using
        try:
            with transaction.atomic(using=using), connections[using].cursor() as cursor:
                if take_batch(cursor, self.table.name, offsets):
                    self.table.write(cursor, found, offsets)
                self._show(cursor, offsets.end)
        finally:
            connections[using].close()  # the thread is Spark's, and nobody tells when it ends

    def _show(self, cursor: Any, reached: Vectors) -> None:
        if self.table.shown_as:
            known = {stream: reached.get(stream, {}) for stream in self.table.streams}
            store_reader(cursor, ReaderRow(self.table.shown_as, os.getpid(), known))
