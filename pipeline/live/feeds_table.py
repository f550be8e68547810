"""Keeps per-user feeds current in the live pipeline.

The live pipeline acts as the named reader ``feeds``, in place of ``manage.py runhandlers``. The live pipeline holds the
reader's name and lease. So the pipeline and the command never both run at the same time. Both move the reader's cursor
in the transaction that writes entries of feeds. So each continues where the other has stopped.

This module uses only the vector at which a micro-batch of Spark ends, and not the batch's rows. The feeds are written
up to the linear position, in ranges of at most 2,000 events, with the SQL that ``manage.py runhandlers`` uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db import transaction

from events.sync.feeds import FEEDS
from pipeline.feeds.write import StreamRange, write_feeds
from pipeline.live.ledger import BatchOffsets, Vectors, hold_ledger, set_ledger
from pipeline.live.named_table import NamedTable, ready_upto
from streams.conf import stream_settings
from streams.core.positions import linear_position
from streams.core.tokens import VectorToken
from streams.epochs import current_epoch
from streams.follow.cursors import adopt_epoch, begin_cursor, move_cursor, read_cursor
from streams.reading.possible_positions import possible_positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FeedsTable", "ready_upto"]

_STREAM = "events"
_STRETCH_EVENTS = 2_000
#: The number of events in the next range, and the position of the last of them.
_NEXT = """
SELECT count(*), max(stream_ordering) FROM (
  SELECT stream_ordering FROM events_event WHERE stream_ordering > %(low)s AND stream_ordering <= %(upto)s
  ORDER BY stream_ordering LIMIT %(limit)s
) AS stretch
"""


class FeedsTable(NamedTable):
    """The feeds of all users, as a table of the live pipeline. Use this object within a block of `held`."""

    name = FEEDS
    streams = (_STREAM,)
    reader = FEEDS
    kind = "follower"
    max_rows = 10_000

    def __init__(self, using: str) -> None:
        super().__init__(using)
        settings = stream_settings()
        self._server_name, self._limit = settings.server_name, settings.feed_entries

    def begin(self, cursor: Any) -> Vectors:
        """Returns the position of the reader's cursor, and stores this position in the ledger.

        If there is no cursor yet, creates a cursor at the present linear position of the stream.
        """
        with transaction.atomic(using=self._using):
            epoch, stored = current_epoch(cursor), _stored(cursor)
            kept = read_cursor(cursor, FEEDS, _STREAM)
            if kept is None:
                kept = begin_cursor(cursor, self._owner, _STREAM, VectorToken(linear_position(stored.values())), epoch)
            elif kept[1] != epoch:
                # The database was restored. Feeds and facts come from the same backup, so the position still fits.
                adopt_epoch(cursor, FEEDS, _STREAM, epoch)
            vectors = {_STREAM: dict.fromkeys(stored, kept[0].base)}
            set_ledger(cursor, self.name, vectors)
        self.show(vectors)
        return vectors

    def columns(self, stream: str) -> tuple[str, ...]:
        """Returns the name of the only column that Spark has to read."""
        return ("token",)

    def rows(self, stream: str, facts: DataFrame) -> DataFrame:
        """Returns the facts unchanged. ``write`` does not use them: its SQL reads the facts from the stream's tables."""
        return facts

    def find(self, batch: DataFrame) -> None:
        """Does nothing, because ``write`` needs only the vector at which the batch ends."""

    def write(self, cursor: Any, found: None, offsets: BatchOffsets) -> None:
        """Adds the events up to the end of the batch to the feeds, except events above the linear position."""
        self._advance(cursor, offsets.end[_STREAM])

    def catch_up(self, cursor: Any) -> bool:
        """Adds events of earlier batches to the feeds that were above the linear position and no longer are.

        Returns true if the feeds have reached the linear position. Needs an open transaction.
        """
        vector = hold_ledger(cursor, self.name).get(_STREAM, {})
        return self._advance(cursor, vector) >= linear_position(_stored(cursor).values())

    def _advance(self, cursor: Any, vector: Mapping[str, int]) -> int:
        """Adds events to the feeds up to the position that ``ready_upto`` returns for ``vector``.

        Moves the reader's cursor to this position. Returns the position that the feeds have reached.
        """
        stored, kept = _stored(cursor), read_cursor(cursor, FEEDS, _STREAM)
        token = VectorToken(0) if kept is None else kept[0]
        low, upto, listed = token.base, ready_upto(stored, vector), 0
        if upto <= low:
            return low
        while low < upto:
            cursor.execute(_NEXT, {"low": low, "upto": upto, "limit": _STRETCH_EVENTS})
            events, last = cursor.fetchone()
            step = last if events == _STRETCH_EVENTS else upto
            write_feeds(cursor, StreamRange(low, step), self._server_name, self._limit)
            low, listed = step, listed + events
        move_cursor(cursor, self._owner, _STREAM, (token, VectorToken(upto)), (listed, 0))
        self.show({_STREAM: dict.fromkeys(stored, upto)})
        return upto


def _stored(cursor: Any) -> dict[str, Any]:
    return dict(possible_positions(cursor, [_STREAM]).get(_STREAM, {}))
