"""First live derived table: events per room, kept current by a Structured Streaming query, each fact counted once.

The effect of a micro-batch and the vector it ends at are written in one transaction (``BatchLedger``). A batch is applied
only if it begins where the ledger ends; a batch that ends there was applied before and is skipped. So a process may be
killed anywhere, and a lost checkpoint only makes the query begin at the ledger's vector again.

Runs in the driver, with Django; executors see only the source and Spark's own aggregation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from pipeline.errors import LedgerMismatch
from pipeline.reader_rows import ReaderRow, store_reader
from pipeline.source import Vector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["QUERY", "BatchOffsets", "CountsQuery", "apply_batch", "ledger_vector", "read_offsets"]

QUERY = "room-counts"
READER = "pipeline room-counts"
_STREAM = "events"

_COUNT = """
INSERT INTO pipeline_roomcount AS counted (room_id, events, last_position)
SELECT * FROM unnest(%(rooms)s::text[], %(events)s::bigint[], %(positions)s::bigint[])
ON CONFLICT (room_id) DO UPDATE SET events = counted.events + excluded.events,
    last_position = greatest(counted.last_position, excluded.last_position)
"""
_LEDGER = "SELECT offsets FROM pipeline_batchledger WHERE query = %(query)s FOR UPDATE"
_FIRST = """
INSERT INTO pipeline_batchledger (query, batch_id, offsets) VALUES (%(query)s, -1, %(offsets)s)
ON CONFLICT (query) DO NOTHING
"""
_ADVANCE = """
UPDATE pipeline_batchledger
SET batch_id = %(batch)s, offsets = %(offsets)s, batches = batches + 1, applied_at = clock_timestamp()
WHERE query = %(query)s
"""


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """A micro-batch as Spark has logged it: everything in ``(start, end]``."""

    batch_id: int
    start: Vector
    end: Vector


def ledger_vector(cursor: Any, query: str) -> Vector:
    """How far the table of a query is; empty when it never ran."""
    cursor.execute("SELECT offsets FROM pipeline_batchledger WHERE query = %(query)s", {"query": query})
    row = cursor.fetchone()
    return {} if row is None else _as_vector(row[0])


def apply_batch(cursor: Any, offsets: BatchOffsets, rooms: Sequence[tuple[str, int, int]]) -> bool:
    """Count a batch, given as (room, events, largest position); False when it was counted before.

    Called with the transaction open. Raises ``LedgerMismatch``.
    """
    cursor.execute(_FIRST, {"query": QUERY, "offsets": "{}"})
    cursor.execute(_LEDGER, {"query": QUERY})
    held = _as_vector(cursor.fetchone()[0])
    if _covers(held, offsets.end):
        return False
    if not (_covers(held, offsets.start) and _covers(offsets.start, held)):
        raise LedgerMismatch(
            f"Query {QUERY}: batch {offsets.batch_id} begins at {offsets.start}, but its table holds every fact up to {held}. "
            f"The checkpoint belongs to another database: remove it, then the query begins at the table's own position."
        )
    if rooms:
        names, events, positions = zip(*rooms, strict=True)
        cursor.execute(_COUNT, {"rooms": list(names), "events": list(events), "positions": list(positions)})
    after = {"query": QUERY, "batch": offsets.batch_id, "offsets": json.dumps(offsets.end)}
    cursor.execute(_ADVANCE, after)
    return True


def _as_vector(stored: Any) -> Vector:
    return json.loads(stored) if isinstance(stored, str) else dict(stored)


def _covers(upper: Mapping[str, int], lower: Mapping[str, int]) -> bool:
    """Whether every writer is as far in ``upper``; one that is missing is at 0."""
    return all(upper.get(writer, 0) >= position for writer, position in lower.items())


def read_offsets(checkpoint: Path, batch_id: int, first: Vector) -> BatchOffsets:
    """The vectors of a batch from Spark's log, which is written before the batch runs; ``first``: where batch 0 begins."""
    start = first if batch_id == 0 else _logged(checkpoint, batch_id - 1)
    return BatchOffsets(batch_id, start, _logged(checkpoint, batch_id))


def _logged(checkpoint: Path, batch_id: int) -> Vector:
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    return dict(json.loads(lines[2]))  # version, metadata, then one line a source


class CountsQuery:
    """The query of one process: its checkpoint, and what is done with each batch."""

    def __init__(self, dsn: str, checkpoint: Path, using: str) -> None:
        self.checkpoint = checkpoint
        self._dsn = dsn
        self._using = using
        self._first: Vector = {}

    def start(self, spark: SparkSession, trigger: Mapping[str, Any]) -> StreamingQuery:
        """Begin at the checkpoint, or without one where the table is."""
        with connections[self._using].cursor() as cursor:
            self._first = self._first_vector(ledger_vector(cursor, QUERY))
        facts = (
            spark.readStream.format("replsite")
            .options(dsn=self._dsn, stream=_STREAM, startingOffsets=json.dumps(self._first))
            .load()
        )
        writer = facts.writeStream.queryName(QUERY).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).foreachBatch(self._apply).start()

    def _first_vector(self, ledger: Vector) -> Vector:
        """Where batch 0 of this checkpoint begins; kept beside it, because the ledger moves on."""
        kept = self.checkpoint.with_suffix(".first.json")
        if (self.checkpoint / "offsets").exists() and kept.exists():
            return dict(json.loads(kept.read_text()))
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(ledger, sort_keys=True))
        return ledger

    def _apply(self, batch: DataFrame, batch_id: int) -> None:
        offsets = read_offsets(self.checkpoint, batch_id, self._first)
        rooms = _rooms_of(batch)
        try:
            with transaction.atomic(using=self._using), connections[self._using].cursor() as cursor:
                apply_batch(cursor, offsets, rooms)
                store_reader(cursor, ReaderRow(READER, os.getpid(), {_STREAM: offsets.end}))
        finally:
            connections[self._using].close()  # Spark calls from threads of its own, and nobody tells when they end


def _rooms_of(batch: DataFrame) -> list[tuple[str, int, int]]:
    """(room, events, largest position) of the events among a batch's facts."""
    from pyspark.sql import functions  # noqa: PLC0415 - the ledger is tested without Spark

    events = batch.where(functions.col("fact_table") == "events_event")
    counted = events.groupBy("room_id").agg(functions.count("*").alias("events"), functions.max("token").alias("last"))
    return [(row["room_id"], row["events"], row["last"]) for row in counted.collect()]
