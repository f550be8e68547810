"""Computes the live statistics of a micro-batch of the streams ``events`` and ``backfill`` with Spark.

One pass over the facts computes two results: sums for each (hour, room), and the senders of each day. The size of the
results depends on the number of rooms and users in the batch, not on the number of events.

Runs in Spark's driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db import transaction

from pipeline.live.ledger import BatchOffsets, Vectors, hold_ledger, set_ledger
from pipeline.live.named_table import NamedTable, ready_upto
from pipeline.statistics.update import COUNTED, DAY_SECONDS, HOUR_SECONDS, READER, Figures, add_figures
from streams.conf import stream_settings
from streams.core.positions import Stored
from streams.core.tokens import VectorToken
from streams.epochs import current_epoch
from streams.follow.cursors import adopt_epoch, begin_cursor, move_cursor, read_cursor
from streams.reading.possible_positions import possible_positions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["STATISTICS", "StatisticsTable", "figures_of", "statistics_rows"]

STATISTICS = "statistics"
EVENTS, BACKFILL = "events", "backfill"
_MESSAGES = ("m.room.message", "m.room.encrypted")
_COLUMNS = ("fact_table", "token", "received_at_ms", "room_id", "type", "state_key", "rejected_reason", "sender")
_SUMS = (*COUNTED, "changes")
#: A batch moves the ledger first and the cursors after it. So the ledger was moved later only if something moved it alone.
_LEDGER_IS_LATER = """
SELECT coalesce((SELECT applied_at FROM pipeline_batchledger WHERE query = %(query)s)
                > (SELECT max(moved_at) FROM streams_storedcursor WHERE reader = %(reader)s), false)
"""


class StatisticsTable(NamedTable):
    """The statistics of rooms, of the server, and of rooms and users by day, as a ``Table`` of the live pipeline.

    Statistics are sums, so a fact must count once, whatever happens to the reader. So their position is in the ledger
    too. If an operator forgets the reader, its next start goes on where the sums end.
    """

    name = STATISTICS
    streams = (EVENTS, BACKFILL)
    reader = READER
    max_rows = 100_000

    def __init__(self, server_name: str) -> None:
        super().__init__(stream_settings().database)
        self._server_name = server_name

    def begin(self, cursor: Any) -> Vectors:
        """Returns the position of the reader's cursors, and stores this position in the ledger.

        Without cursors, creates them at the position in the ledger. If the ledger was moved later than the cursors, moves
        them to this position: an earlier version of this program moves the ledger only.
        """
        with transaction.atomic(using=self._using):
            epoch = current_epoch(cursor)
            ledger = hold_ledger(cursor, self.name)
            cursor.execute(_LEDGER_IS_LATER, {"query": self.name, "reader": self.reader})
            (is_later,) = cursor.fetchone()
            vectors: Vectors = {}
            for stream, stored in self._stored(cursor).items():
                counted = _token(stored, ledger.get(stream, {}))
                token, known = begin_cursor(cursor, self._owner, stream, counted, epoch)
                if known != epoch:
                    # The database was restored. Sums and facts come from the same backup, so the position still fits.
                    adopt_epoch(cursor, self.reader, stream, epoch)
                if is_later and token != counted:
                    move_cursor(cursor, self._owner, stream, (token, counted))
                    token = counted
                vectors[stream] = {writer: token.position_of(writer) for writer in (*stored, *token.entries)}
            set_ledger(cursor, self.name, vectors)
        self.show(vectors)
        return vectors

    def columns(self, stream: str) -> tuple[str, ...]:
        """Returns the names of the columns from which the counts are computed."""
        return _COLUMNS

    def rows(self, stream: str, facts: DataFrame) -> DataFrame:
        """Returns a row for each fact, with the numbers that the fact adds to the counts (``statistics_rows``)."""
        return statistics_rows(stream, facts)

    def find(self, batch: DataFrame) -> Figures:
        """Returns the sums of a batch for each (hour, room), and the senders of each day."""
        return figures_of(batch)

    def write(self, cursor: Any, found: Figures, offsets: BatchOffsets) -> None:
        """Adds the result of ``find`` to the tables of statistics, and moves the reader's cursors."""
        add_figures(cursor, found, self._server_name)
        counts = {EVENTS: sum(found.events), BACKFILL: sum(found.history)}
        for stream, stored in self._stored(cursor).items():
            if (kept := read_cursor(cursor, self.reader, stream)) is not None:
                upto = kept[0].merge(_token(stored, offsets.end.get(stream, {})))
                move_cursor(cursor, self._owner, stream, (kept[0], upto), (counts[stream], 0))
        self.show(offsets.end)

    def _stored(self, cursor: Any) -> dict[str, Mapping[str, Stored]]:
        """Returns the stored positions of the writers of each stream."""
        found = possible_positions(cursor, self.streams)
        return {stream: found.get(stream, {}) for stream in self.streams}


def _token(stored: Mapping[str, Stored], vector: Mapping[str, int]) -> VectorToken:
    """Returns the token of a table that has every fact up to ``vector``."""
    return VectorToken.of(ready_upto(stored, vector), vector)


def statistics_rows(stream: str, facts: DataFrame) -> DataFrame:
    """Returns a row for each fact. The row has the fact's hour, day and room, and 0 or 1 for each count.

    If the fact is a new accepted event, ``user_id`` is the event's sender, who counts as an active user. Otherwise
    ``user_id`` is null.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415 - the rest is tested without Spark

    is_event, is_news = F.col("fact_table") == "events_event", F.lit(stream == EVENTS)
    new = is_event & is_news
    is_rejected = F.col("rejected_reason").isNotNull() if stream == EVENTS else F.lit(False)

    def flag(condition: Column) -> Column:
        return F.when(condition, 1).otherwise(0)

    return facts.select(
        _begin("received_at_ms", HOUR_SECONDS).alias("hour_ms"),
        _begin("received_at_ms", DAY_SECONDS).alias("day_ms"),
        "room_id",
        F.when(new & ~is_rejected, F.col("sender")).alias("user_id"),
        flag(new).alias("events"),
        flag(new & F.col("type").isin(*_MESSAGES)).alias("messages"),
        flag(new & F.col("state_key").isNotNull()).alias("state_events"),
        flag(new & is_rejected).alias("rejected"),
        flag(is_event & ~is_news).alias("history"),
        flag(~new).alias("changes"),
        F.when(new, F.col("token")).otherwise(0).alias("last_position"),
        F.when(new, F.col("received_at_ms")).otherwise(0).alias("last_ms"),
    )


def _begin(column: str, seconds: int) -> Column:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return F.col(column) - F.col(column) % (seconds * 1000)


def figures_of(batch: DataFrame) -> Figures:
    """Returns the sums of a batch for each (hour, room), and the senders of events for each day."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    keys = ("hour_ms", "room_id", "day_ms", "user_id")
    sums = [F.sum(name).alias(name) for name in _SUMS]
    most = [F.max(name).alias(name) for name in ("last_position", "last_ms")]
    room, sender = [F.col("hour_ms"), F.col("room_id")], [F.col("day_ms"), F.col("user_id")]
    grouped = batch.groupingSets([room, sender], *(F.col(key) for key in keys))
    summed = grouped.agg(F.grouping("room_id").alias("of_sender"), *sums, *most)
    wanted = summed.where((F.col("of_sender") == 0) | F.col("user_id").isNotNull())
    return _figures(wanted.toArrow())


def _figures(table: pa.Table) -> Figures:
    import pyarrow.compute as pc  # noqa: PLC0415

    of_sender = pc.equal(table["of_sender"], 1)
    rooms, senders = table.filter(pc.invert(of_sender)), table.filter(of_sender)
    names = ("hour_ms", "room_id", *_SUMS, "last_position", "last_ms")
    return Figures(
        **{name: rooms[name].to_pylist() for name in names},
        **{name: senders[name].to_pylist() for name in ("day_ms", "user_id")},
    )
