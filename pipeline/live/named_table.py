"""Makes a table of the live pipeline a named reader (``streams.follow``): one mechanism for every stored position.

The pipeline holds the reader's name and lease while its query runs, and moves the reader's cursors in the transaction
that changes the table. So the live page, the commands, the health checks and the metrics show the reader with its lag
from then on, whether a process runs it or not, until an operator forgets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import Error as DjangoError
from django.db import transaction

from pipeline.live.ledger import BatchOffsets, Vectors, hold_ledger, set_ledger
from streams.core.positions import Stored, linear_position
from streams.core.tokens import VectorToken
from streams.db.driver import DatabaseError
from streams.epochs import current_epoch
from streams.follow.lease import ReaderLock
from streams.follow.stored_cursors import Owner, adopt_epoch, begin_cursor, move_cursor, read_cursor
from streams.reading.possible_positions import possible_positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["NamedTable", "ready_upto"]

#: A batch moves the ledger first and the cursors after it. So the ledger was moved later only if something moved it alone.
_LEDGER_IS_LATER = """
SELECT coalesce((SELECT applied_at FROM pipeline_batchledger WHERE query = %(query)s)
                > (SELECT max(moved_at) FROM streams_storedcursor WHERE reader = %(reader)s), false)
"""


class NamedTable:
    """The base class of the tables of the live pipeline. Run the query within a block of `held`.

    A table says which columns it needs (``columns``), makes rows of facts (``rows``), sums up a batch with Spark
    (``find``), and adds the result to its rows (``write``). ``pipeline.live.statistics_table`` is an example.
    """

    name: ClassVar[str]
    """The name of the query, of its row in the ledger and of its checkpoint."""
    streams: ClassVar[tuple[str, ...]]
    """The names of the streams that the query reads, in this order."""
    reader: ClassVar[str]
    """The name of the reader whose cursors say which facts the table includes."""
    max_rows: ClassVar[int]
    """The largest number of rows that a batch has of one stream."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._owner = Owner(self.reader, 0, "", 0)
        self._lock: ReaderLock | None = None
        self._reached: Vectors = {}

    def columns(self, stream: str) -> tuple[str, ...]:
        """Returns the names of the columns of a stream that the query needs. Spark does not fetch other columns."""
        raise NotImplementedError

    def rows(self, stream: str, facts: DataFrame) -> DataFrame:
        """Converts the facts of a stream to rows of a batch. The rows of all streams must have the same columns."""
        raise NotImplementedError

    def find(self, batch: DataFrame) -> Any:
        """Computes the result of a batch with Spark, which is later passed to ``write``. Called without an open transaction."""
        raise NotImplementedError

    def write(self, cursor: Any, found: Any) -> Mapping[str, int]:
        """Writes the result of ``find`` to the table, in the transaction that records the batch in the ledger.

        Returns stream -> number of facts, which the live page shows.
        """
        raise NotImplementedError

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the reader's name while the block runs. Raises ``ReaderNameTaken`` if another process holds it.

        An error that ends the block is stored with the reader, unless the database is away: then the pipeline waits and
        retries.
        """
        self._lock = ReaderLock(self.reader, self._using, lambda: self._reached)
        self._lock.kind = "spark"
        self._owner = self._lock.acquire()
        errors: dict[str, BaseException] = {}
        try:
            yield
        except (DatabaseError, DjangoError):
            raise
        except Exception as error:
            errors = dict.fromkeys(self.streams, error)
            raise
        finally:
            self._lock.release(errors)

    @property
    def is_lost(self) -> bool:
        """True if this process has lost the reader's name, because the connection that held the name has ended."""
        return self._lock is not None and self._lock.lost.is_set()

    def begin(self, cursor: Any) -> Vectors:
        """Returns the position of the reader's cursors, and stores this position in the ledger.

        Without cursors, creates them at the position in the ledger. So if an operator forgets the reader, its next start
        goes on where the table ends. Cursors that an operator has set back are moved there, too: what the table has cannot
        be taken off. If the ledger was moved later than the cursors, moves them to this position: an earlier version of
        this program moves the ledger only.
        """
        with transaction.atomic(using=self._using):
            epoch = current_epoch(cursor)
            ledger = hold_ledger(cursor, self.name)
            cursor.execute(_LEDGER_IS_LATER, {"query": self.name, "reader": self.reader})
            (is_later,) = cursor.fetchone()
            vectors: Vectors = {}
            for stream, stored in self._stored(cursor).items():
                included = _token(stored, ledger.get(stream, {}))
                token, known = begin_cursor(cursor, self._owner, stream, included, epoch)
                if known != epoch:
                    # The database was restored. Table and facts come from the same backup, so the position still fits.
                    adopt_epoch(cursor, self.reader, stream, epoch)
                begins_at = included if is_later else token.merge(included)
                if token != begins_at:
                    move_cursor(cursor, self._owner, stream, (token, begins_at))
                    token = begins_at
                vectors[stream] = {writer: token.position_of(writer) for writer in (*stored, *token.entries)}
            set_ledger(cursor, self.name, vectors)
        self._show(vectors)
        return vectors

    def apply(self, cursor: Any, found: Any, offsets: BatchOffsets) -> None:
        """Writes the result of a batch to the table, and moves the reader's cursors to the end of the batch."""
        facts = self.write(cursor, found)
        for stream, stored in self._stored(cursor).items():
            if (kept := read_cursor(cursor, self.reader, stream)) is not None:
                upto = kept[0].merge(_token(stored, offsets.end.get(stream, {})))
                move_cursor(cursor, self._owner, stream, (kept[0], upto), (facts.get(stream, 0), 0))
        self._show(offsets.end)

    def _stored(self, cursor: Any) -> dict[str, Mapping[str, Stored]]:
        found = possible_positions(cursor, self.streams)
        return {stream: found.get(stream, {}) for stream in self.streams}

    def _show(self, vectors: Mapping[str, Mapping[str, int]]) -> None:
        """Sets the positions that the live page shows while the query runs."""
        self._reached = {stream: dict(vectors.get(stream, {})) for stream in self.streams}


def _token(stored: Mapping[str, Stored], vector: Mapping[str, int]) -> VectorToken:
    """Returns the token of a table that has every fact up to ``vector``."""
    return VectorToken.of(ready_upto(stored, vector), vector)


def ready_upto(stored: Mapping[str, Stored], vector: Mapping[str, int]) -> int:
    """Returns the position up to which a table that has every fact up to ``vector`` has all facts of all writers.

    It is the largest position that meets two conditions. First, all facts up to this position are complete. Second,
    each of these facts is at or below the position of its writer in ``vector``.
    """
    # If a writer's stored position is above its position in ``vector``, the writer has facts that ``vector`` does not
    # cover. Then the result must not be above the writer's position in ``vector``.
    behind = [vector.get(writer, 0) for writer, at in stored.items() if at.position > vector.get(writer, 0)]
    return min([linear_position(stored.values()), *behind])
