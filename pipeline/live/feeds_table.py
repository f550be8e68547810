"""Keeps per-user feeds current in the live pipeline.

The live pipeline acts as the named reader ``feeds``, in place of ``manage.py runhandlers``. It takes the reader's name
and lease, so only one of the two runs at a time. Each continues where the other stopped, because both move the reader's
cursor in the transaction that writes the entries.

Spark only tells that there are new facts and how far a batch goes. The feeds are written up to the linear position, in
ranges of at most 2,000 events, with the same SQL that the reader uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import Error as DjangoDatabaseError
from django.db import transaction

from events.sync.feeds import FEEDS
from pipeline.feeds.write import StreamRange, write_feeds
from pipeline.live.ledger import BatchOffsets, Vectors, hold_ledger, set_ledger
from streams.conf import stream_settings
from streams.core.positions import Stored, linear_position
from streams.core.tokens import VectorToken
from streams.db.driver import DatabaseError
from streams.epochs import current_epoch
from streams.follow.cursors import Owner, adopt_epoch, begin_cursor, move_cursor, read_cursor
from streams.follow.lease import ReaderLock
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


class FeedsTable:
    """The feeds of all users, as a table of the live pipeline. Use it within a block of `held`."""

    name = FEEDS
    streams = (_STREAM,)
    max_rows = 10_000
    shown_as = ""

    def __init__(self, using: str) -> None:
        settings = stream_settings()
        self._using, self._server_name, self._limit = using, settings.server_name, settings.feed_entries
        self._owner = Owner(FEEDS, 0, "", 0)
        self._lock: ReaderLock | None = None
        self._writers: dict[str, int] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the name of the reader ``feeds`` for the block. Raises ``ReaderNameTaken``."""
        self._lock = ReaderLock(FEEDS, self._using, self._positions)
        self._owner = self._lock.take()
        try:
            yield
        except (DatabaseError, DjangoDatabaseError):
            # The pipeline waits for the database and retries. So no error is stored with the reader.
            self._lock.release()
            raise
        except Exception as error:
            self._lock.release({_STREAM: error})
            raise
        except BaseException:
            self._lock.release()
            raise
        self._lock.release()

    @property
    def is_lost(self) -> bool:
        """True once the reader's name was lost with its connection."""
        return self._lock is not None and self._lock.lost.is_set()

    def begin(self, cursor: Any) -> Vectors:
        """Returns the position of the reader's cursor, and stores it in the ledger.

        A new cursor starts at the present position of the stream, as for every reader.
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
        self._writers = dict(vectors[_STREAM])
        return vectors

    def columns(self, stream: str) -> tuple[str, ...]:
        """Returns the one column that Spark has to read."""
        return ("token",)

    def rows(self, stream: str, facts: DataFrame) -> DataFrame:
        """Returns the facts unchanged. The feeds are written by SQL in the database, which reads the facts there."""
        return facts

    def find(self, batch: DataFrame) -> None:
        """Does nothing, because only the end of the batch is needed."""

    def write(self, cursor: Any, found: None, offsets: BatchOffsets) -> None:
        """Adds the events up to the end of the batch to the feeds, except events that are not complete yet."""
        self._advance(cursor, offsets.end[_STREAM])

    def catch_up(self, cursor: Any) -> bool:
        """Adds events to the feeds that had to wait for another writer and are complete by now.

        Returns true if the feeds have reached the linear position. Needs an open transaction.
        """
        vector = hold_ledger(cursor, self.name).get(_STREAM, {})
        return self._advance(cursor, vector) >= linear_position(_stored(cursor).values())

    def _advance(self, cursor: Any, vector: Mapping[str, int]) -> int:
        """Adds to the feeds all events that are complete and within ``vector``.

        Returns the position that the feeds have reached.
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
        self._writers = dict.fromkeys(stored, upto)
        return upto

    def _positions(self) -> dict[str, dict[str, int]]:
        return {_STREAM: self._writers}


def _stored(cursor: Any) -> dict[str, Any]:
    return dict(possible_positions(cursor, [_STREAM]).get(_STREAM, {}))


def ready_upto(stored: Mapping[str, Stored], vector: Mapping[str, int]) -> int:
    """Returns the largest position up to which all facts are complete and within ``vector``."""
    # A writer with facts that are not in ``vector`` limits the result to the end of its own part of the vector.
    behind = [vector.get(writer, 0) for writer, at in stored.items() if at.position > vector.get(writer, 0)]
    return min([linear_position(stored.values()), *behind])
