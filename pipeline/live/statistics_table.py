"""Counts the events of each room with Spark: the worked example of a table that the live pipeline keeps current.

Spark sums up the facts of a batch by room. One statement adds the sums to ``pipeline_roomstatistics``. So the
transaction is short, and its size depends on the number of rooms in the batch, not on the number of events. Counts are
sums, so a fact must count once: the batch is recorded in the ledger in the same transaction (``pipeline.live.ledger``).

Runs in Spark's driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.live.named_table import NamedTable
from pipeline.models.statistics import READER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["COUNTED", "STATISTICS", "StatisticsTable"]

STATISTICS = "statistics"
COUNTED = ("events", "messages", "state_events", "rejected", "history")
"""Names of the counts of facts."""
EVENTS, BACKFILL = "events", "backfill"
_MESSAGES = ("m.room.message", "m.room.encrypted")
_COLUMNS = ("fact_table", "token", "received_at_ms", "room_id", "type", "state_key", "rejected_reason")
_NEWEST = ("last_position", "last_ms")
_NAMES = ", ".join(COUNTED)
_ADDED = ", ".join(f"{name} = room.{name} + excluded.{name}" for name in COUNTED)
#: Rows are locked in the order of the room ID, so that two transactions cannot deadlock.
_ADD = f"""
INSERT INTO pipeline_roomstatistics AS room (room_id, {_NAMES}, last_position, last_event_at)
SELECT room_id, {_NAMES}, last_position, to_timestamp(nullif(last_ms, 0) / 1000.0)
FROM unnest(%(room_id)s::text[], {", ".join(f"%({name})s::bigint[]" for name in (*COUNTED, *_NEWEST))})
  AS given (room_id, {_NAMES}, last_position, last_ms) ORDER BY room_id
ON CONFLICT (room_id) DO UPDATE SET {_ADDED},
    last_position = greatest(room.last_position, excluded.last_position),
    last_event_at = greatest(room.last_event_at, excluded.last_event_at)
"""


class StatisticsTable(NamedTable):
    """The counts of each room's events, new ones and history, since they are counted. A purge does not lower them."""

    name = STATISTICS
    streams = (EVENTS, BACKFILL)
    reader = READER
    max_rows = 100_000

    def columns(self, stream: str) -> tuple[str, ...]:
        """Returns the names of the columns from which the counts are computed."""
        return _COLUMNS

    def rows(self, stream: str, facts: DataFrame) -> DataFrame:
        """Returns a row for each event, with 0 or 1 for each count. A change of a room's state alone is no event."""
        from pyspark.sql import functions as F  # noqa: PLC0415 - the rest is tested without Spark

        is_news = F.lit(stream == EVENTS)
        is_rejected = F.col("rejected_reason").isNotNull() if stream == EVENTS else F.lit(False)

        def flag(condition: Column) -> Column:
            return F.when(condition, 1).otherwise(0)

        return facts.where(F.col("fact_table") == "events_event").select(
            "room_id",
            flag(is_news).alias("events"),
            flag(is_news & F.col("type").isin(*_MESSAGES)).alias("messages"),
            flag(is_news & F.col("state_key").isNotNull()).alias("state_events"),
            flag(is_news & is_rejected).alias("rejected"),
            flag(~is_news).alias("history"),
            F.when(is_news, F.col("token")).otherwise(0).alias("last_position"),
            F.when(is_news, F.col("received_at_ms")).otherwise(0).alias("last_ms"),
        )

    def find(self, batch: DataFrame) -> dict[str, list[Any]]:
        """Returns the sums of a batch by room, as columns: name -> values."""
        from pyspark.sql import functions as F  # noqa: PLC0415

        sums = [F.sum(name).alias(name) for name in COUNTED]
        newest = [F.max(name).alias(name) for name in _NEWEST]
        columns: dict[str, list[Any]] = batch.groupBy("room_id").agg(*sums, *newest).toArrow().to_pydict()
        return columns

    def write(self, cursor: Any, found: Mapping[str, list[Any]]) -> dict[str, int]:
        """Adds the sums of a batch to the counts. Returns the number of events of each stream."""
        if found["room_id"]:
            cursor.execute(_ADD, found)
        return {EVENTS: sum(found["events"]), BACKFILL: sum(found["history"])}
