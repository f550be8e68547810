"""Reads the facts for a reader from the tables, up to the stored positions, so that all facts read are complete.

No fact is read before its commit, and trimmed facts are never skipped without an error. Both follow from the order of
reading in ``TableSource.next``. A source has a connection of its own, and only one thread at a time may use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streams import registry
from streams.core.positions import linear_position, positions_to_show
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed, trim_mark
from streams.db import driver
from streams.epochs import check_epoch, current_epoch
from streams.follow.handlers import Begin, Handler
from streams.reading import watcher
from streams.reading.possible_positions import possible_positions
from streams.replication.common.table_rows import BatchSizer, FactRange, table_rows
from streams.replication.protocol.ordering import FollowedRow, View
from streams.replication.protocol.range_math import due_rows, next_range, target_of

__all__ = ["Batch", "TableSource", "present_token"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to deliver now, the cursor after these rows, and the token up to which facts may be delivered (``target``)."""

    rows: Sequence[FollowedRow]
    cursor: VectorToken
    target: VectorToken

    @property
    def is_last(self) -> bool:
        """True if the batch ends at ``target``. Then the positions must be read again to find more facts."""
        return next_range(self.cursor, self.target) is None


def present_token(cursor: Any, stream: str, view: View = View.WRITER) -> VectorToken:
    """Returns the stored positions of a stream as a token. Everything up to it is committed."""
    return target_of(view, *_present(cursor, stream))


def _present(cursor: Any, stream: str) -> tuple[int, dict[str, int]]:
    found = possible_positions(cursor, [stream])
    watcher.before_shown(found)  # drops cached values that these facts make outdated, before a handler uses them
    stored = found.get(stream, {})
    linear = linear_position(stored.values())
    return linear, positions_to_show(stored, linear)


class TableSource:
    """The source from which one handler loop reads the facts of its stream."""

    def __init__(self, handler: Handler, using: str) -> None:
        self._handler = handler
        self._declaration = registry.get(handler.stream).declaration
        self._connection = driver.KeptConnection(using, f"replsite fetch {handler.reader}", reads_in_order=True)
        self._pace = BatchSizer()
        self._target: VectorToken | None = None
        self.writers: tuple[str, ...] = ()

    def begin(self) -> VectorToken:
        """Returns the token at which a reader without a stored cursor starts, as its handler's ``begin`` says.

        Also makes the next read fetch the positions again, because the database may have been restored.
        """
        self._target = None
        with self._connection.cursor() as cursor:
            if self._handler.begin is Begin.OLDEST:
                mark = trim_mark(cursor, self._handler.stream)
                return VectorToken(mark.position)
            return present_token(cursor, self._handler.stream, self._handler.view)

    def epoch(self) -> str:
        """Returns the present epoch of the streams' database."""
        with self._connection.cursor() as cursor:
            return current_epoch(cursor)

    def check_epoch(self, kept: str) -> None:
        """Raises ``EpochChanged`` if ``kept``, the epoch of a cursor, is not the present epoch."""
        handler = self._handler
        with self._connection.cursor() as cursor:
            check_epoch(cursor, kept, f"Reader {handler.reader} on stream {handler.stream}")

    def next(self, after: VectorToken) -> Batch:
        """Returns the next rows after the cursor ``after``, about as many as the handler's ``chunk_rows``.

        The positions are read again only once everything that they cover was read. Raises ``ResyncNeeded`` or
        ``DatabaseError``.
        """
        handler = self._handler
        with self._connection.cursor() as cursor:
            # The positions are read before the rows. In the other order, the rows are read, fact 5 commits, its position is
            # stored and read, and the cursor moves past fact 5, which is not among the rows.
            if self._target is None or next_range(after, self._target) is None:
                linear, positions = _present(cursor, handler.stream)
                self._target, self.writers = target_of(handler.view, linear, positions), tuple(positions)
            target = self._target
            reading = next_range(after, target)
            if reading is None:
                return Batch((), after, target)
            wanted = FactRange(reading.after, reading.upto, reading.writers)
            limit = self._pace.limit(handler.chunk_rows)
            rows, reached = table_rows(cursor, self._declaration, wanted, limit)
            # The low-water mark is read after the rows. A trim deletes facts and moves the mark in one transaction. If the mark
            # were read first, a trim between the two queries would remove facts without an error here.
            check_not_trimmed(cursor, handler.stream, after, reader=handler.reader)
        self._pace.learn(rows)
        return Batch(due_rows(rows, after, target), after.after_partial_read(target, reached), target)

    def close(self) -> None:
        """Closes the connection. A later use opens another one."""
        self._connection.close()
