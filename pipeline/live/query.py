"""Runs a query of the live pipeline: reads streams in micro-batches, and keeps tables current.

Spark computes the result of a batch first. Then one short transaction records the batch in the ledger and writes the
result to the tables. At each start a query begins at the position of its tables, with a new checkpoint. So nothing
depends on files that an earlier run has left.

Runs in Spark's driver, with Django. Spark calls ``_apply`` in a separate thread, for one batch after another.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from pipeline.live.ledger import Vectors, read_offsets, record_batch
from pipeline.live.named_table import NamedTable
from pipeline.source.data_source import register
from pipeline.source.stream_schemas import declaration_of, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["LiveQuery", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """The database that a query reads and writes, and the folder for Spark's checkpoints."""

    dsn: str
    using: str
    checkpoints: Path


class LiveQuery:
    """A query that keeps a table current. Call `start` once."""

    def __init__(self, table: NamedTable, place: Place) -> None:
        self.table = table
        self._place = place
        self._checkpoint = place.checkpoints / table.name
        self._first: Vectors = {}

    def start(self, spark: SparkSession, trigger: Mapping[str, Any]) -> StreamingQuery:
        """Starts the query at the position of its tables. Returns as soon as Spark has started the query."""
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        with connections[self._place.using].cursor() as cursor:
            self._first = self.table.begin(cursor)
        parts = [self._facts(spark, stream) for stream in self.table.streams]
        facts = parts[0]
        for part in parts[1:]:
            facts = facts.union(part)
        writer = facts.writeStream.queryName(self.table.name).option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**trigger).foreachBatch(self._apply).start()

    def _facts(self, spark: SparkSession, stream: str) -> DataFrame:
        begin = json.dumps(self._first.get(stream, {}), sort_keys=True)
        known, wanted = spark_schema(declaration_of(stream)), set(self.table.columns(stream))
        # Spark's threads write into a map of the registration without a lock. If two queries start at once and share one
        # registration, they corrupt the map, and every task fails from then on (OptionalDataException). So each source, at
        # each start, gets a registration of its own.
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
        # Spark's work is done before the transaction begins, so the transaction and its locks stay short.
        found = self.table.find(batch)
        using = self._place.using
        try:
            with transaction.atomic(using=using), connections[using].cursor() as cursor:
                if record_batch(cursor, self.table.name, offsets):
                    self.table.apply(cursor, found, offsets)
        finally:
            connections[using].close()  # the thread is Spark's and may end without notice
