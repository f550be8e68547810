"""Per-user feeds kept by the live pipeline, as the named reader ``feeds``: in place of ``manage.py runhandlers feeds``.

It takes the reader's name and lease, so there is never more than one of the two, and each goes on where the other stopped: the
cursor that moves with the entries is the reader's own. Spark says when there is something new and how far a batch goes; feeds are
written up to the linear position, in stretches, by the same SQL as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import Error as DjangoDatabaseError
from django.db import transaction

from events.sync.feeds import FEEDS
from pipeline.feeds.write import Stretch, write_feeds
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
#: Of the events of a stretch, the last, and how many they are.
_NEXT = """
SELECT count(*), max(stream_ordering) FROM (
  SELECT stream_ordering FROM events_event WHERE stream_ordering > %(low)s AND stream_ordering <= %(upto)s
  ORDER BY stream_ordering LIMIT %(limit)s
) AS stretch
"""


class FeedsTable:
    """All feeds. Used within `held`."""

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
        """Be the reader ``feeds`` for the block; raises ``ReaderNameTaken``."""
        self._lock = ReaderLock(FEEDS, self._using, self._positions)
        self._owner = self._lock.take()
        try:
            yield
        except (DatabaseError, DjangoDatabaseError):  # waited for; the reader goes on by itself
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
        """Whether the reader's name was lost with its connection."""
        return self._lock is not None and self._lock.lost.is_set()

    def begin(self, cursor: Any) -> Vectors:
        """Where the reader's cursor is; a first one is where the stream is now, as that of every reader."""
        with transaction.atomic(using=self._using):
            epoch, stored = current_epoch(cursor), _stored(cursor)
            kept = read_cursor(cursor, FEEDS, _STREAM)
            if kept is None:
                kept = begin_cursor(cursor, self._owner, _STREAM, VectorToken(linear_position(stored.values())), epoch)
            elif kept[1] != epoch:  # feeds and facts were restored together
                adopt_epoch(cursor, FEEDS, _STREAM, epoch)
            vectors = {_STREAM: dict.fromkeys(stored, kept[0].base)}
            set_ledger(cursor, self.name, vectors)
        self._writers = dict(vectors[_STREAM])
        return vectors

    def columns(self, stream: str) -> tuple[str, ...]:
        """Next to nothing."""
        return ("token",)

    def rows(self, stream: str, facts: DataFrame) -> DataFrame:
        """The facts are read where the feeds are."""
        return facts

    def find(self, batch: DataFrame) -> None:
        """Nothing: what counts is how far the batch goes."""

    def write(self, cursor: Any, found: None, offsets: BatchOffsets) -> None:
        """List what the batch brings nearer."""
        self._advance(cursor, offsets.end[_STREAM])

    def catch_up(self, cursor: Any) -> bool:
        """List what waited for a writer that has let go meanwhile; whether all is listed. Transaction open."""
        vector = hold_ledger(cursor, self.name).get(_STREAM, {})
        return self._advance(cursor, vector) >= linear_position(_stored(cursor).values())

    def _advance(self, cursor: Any, vector: Mapping[str, int]) -> int:
        """Up to where every event is complete and taken; returns where the feeds are."""
        stored, kept = _stored(cursor), read_cursor(cursor, FEEDS, _STREAM)
        token = VectorToken(0) if kept is None else kept[0]
        low, upto, listed = token.base, ready_upto(stored, vector), 0
        if upto <= low:
            return low
        while low < upto:
            cursor.execute(_NEXT, {"low": low, "upto": upto, "limit": _STRETCH_EVENTS})
            events, last = cursor.fetchone()
            step = last if events == _STRETCH_EVENTS else upto
            write_feeds(cursor, Stretch(low, step), self._server_name, self._limit)
            low, listed = step, listed + events
        move_cursor(cursor, self._owner, _STREAM, (token, VectorToken(upto)), (listed, 0))
        self._writers = dict.fromkeys(stored, upto)
        return upto

    def _positions(self) -> dict[str, dict[str, int]]:
        return {_STREAM: self._writers}


def _stored(cursor: Any) -> dict[str, Any]:
    return dict(possible_positions(cursor, [_STREAM]).get(_STREAM, {}))


def ready_upto(stored: Mapping[str, Stored], vector: Mapping[str, int]) -> int:
    """The largest position up to which all facts are complete and in ``vector``: no writer has one that was not taken."""
    behind = [vector.get(writer, 0) for writer, at in stored.items() if at.position > vector.get(writer, 0)]
    return min([linear_position(stored.values()), *behind])
