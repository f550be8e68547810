"""Reads the facts for a reader from the tables, up to the stored positions, so that all facts read are complete.

No fact is skipped because it commits late, and trimmed facts are never skipped without an error. Both follow from the
order of reading in ``TableSource.next``. A ``TableSource`` has a database connection of its own, and only one thread at
a time may use it. Only ``hear`` may be called by another thread at the same time.

Positions come from the table, or from notifications (``streams.reading.position_cache``). Positions from notifications are
used only if the table confirms them in the same snapshot in which the rows are read. So after a notification one statement
is enough, and a false notification, or one from another server, cannot move a cursor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streams import registry
from streams.conf import stream_settings
from streams.core.declaration import StreamDeclaration
from streams.core.positions import linear_position, positions_to_show
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed, trim_mark
from streams.db import driver
from streams.epochs import check_epoch, current_epoch, is_standby
from streams.errors import EpochChanged
from streams.follow.handlers import Begin, Handler
from streams.reading import watcher
from streams.reading.position_cache import NotificationQueue, PositionCache
from streams.reading.position_notifications import PositionNotification
from streams.reading.possible_positions import positions_and_sequence
from streams.reading.rows import StoredPosition
from streams.replication.common.table_rows import BatchSizer, FactRange, NotSo, Premise, table_rows
from streams.replication.protocol.ordering import FollowedRow, View
from streams.replication.protocol.range_math import due_rows, next_range, target_of

__all__ = ["Batch", "TableSource", "present_token"]

#: True under three conditions. All writers of the stream are known, with their states. Their stored positions are at
#: least the known positions. And no fact above ``base`` was trimmed.
_PREMISE = """
(SELECT bool_and(coalesce(abs(stored.position) >= known.position AND stored.state = known.state, false))
 FROM streams_streamposition AS stored
 LEFT JOIN unnest(%(known_writers)s::text[], %(known_positions)s::bigint[], %(known_states)s::text[])
     AS known (writer, position, state) ON known.writer = stored.instance_name
 WHERE stored.stream = %(stream)s::text)
AND NOT EXISTS (SELECT FROM streams_lowwatermark AS mark
                WHERE mark.stream = %(stream)s::text AND mark.position > %(base)s::bigint)
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows to deliver now. ``cursor`` covers them, and ``target`` is the token up to which facts may be delivered."""

    rows: Sequence[FollowedRow]
    cursor: VectorToken
    target: VectorToken

    @property
    def is_last(self) -> bool:
        """True if the batch ends at ``target``. Then new positions must be read before further facts can be found."""
        return next_range(self.cursor, self.target) is None


def present_token(cursor: Any, stream: str, view: View = View.WRITER) -> VectorToken:
    """Returns the stored positions of a stream as a token. All facts that this token covers are committed."""
    return _target(view, _present(cursor, registry.get(stream).declaration)[0])


def _present(cursor: Any, declaration: StreamDeclaration) -> tuple[dict[str, StoredPosition], int | None]:
    """Returns (``{writer: stored position}``, last value of the stream's sequence). The value is None if it is not known."""
    stored, given_out = positions_and_sequence(cursor, declaration)
    # Drops cached values that these facts make outdated, before a handler uses them.
    watcher.before_shown({declaration.name: stored})
    return stored, given_out


def _target(view: View, stored: Mapping[str, StoredPosition]) -> VectorToken:
    """Returns the token up to which facts may be delivered. ``stored`` maps each writer to its position."""
    linear = linear_position(stored.values())
    return target_of(view, linear, positions_to_show(stored, linear))


def _confirmed(stream: str, stored: Mapping[str, StoredPosition], after: VectorToken) -> Premise:
    """Returns the condition under which rows that were read up to the positions ``stored`` may be delivered.

    The condition has two parts, which must be true in the snapshot of the rows. Each writer in the table of positions
    is in ``stored``, with the same or a lower position there and the same state. And no fact above the base of
    ``after`` was trimmed.
    """
    known = stored.values()
    return Premise(
        _PREMISE,
        {
            "stream": stream,
            "known_writers": list(stored),
            "known_positions": [at.position for at in known],
            "known_states": [at.state for at in known],
            "base": after.base,
        },
    )


class TableSource:
    """The source from which one handler loop reads the facts of its stream."""

    def __init__(self, handler: Handler, using: str) -> None:
        self._handler = handler
        self._declaration = registry.get(handler.stream).declaration
        self._using = using
        self._connection = driver.KeptConnection(using, f"replsite fetch {handler.reader}", reads_in_order=True)
        self._pace = BatchSizer()
        self._target: VectorToken | None = None
        self._heard = NotificationQueue()
        self._known = PositionCache(lambda _: self._declaration.in_memory)
        self._look_due = -math.inf
        self.writers: tuple[str, ...] = ()

    def hear(self, notifications: Sequence[PositionNotification]) -> None:
        """Queues notifications of the stream for the next read. An empty list means that some notifications may be lost.

        Called by the thread that receives notifications, before it wakes the thread that reads facts.
        """
        self._heard.put(notifications)

    def look_again(self) -> None:
        """Makes the next call of ``next`` read the positions from the table, even if notifications have brought positions."""
        self._look_due = -math.inf

    def begin(self) -> VectorToken:
        """Returns the token at which a reader without a stored cursor starts. The handler's option ``begin`` decides.

        Also makes the next call of ``next`` read the positions from the table, because the database may have been
        restored.
        """
        self._target = None
        self.look_again()
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

    def check_given_out(self, after: VectorToken) -> None:
        """Raises ``EpochChanged`` if a cursor lies above all IDs that the stream's sequence has given out."""
        with self._connection.cursor() as cursor:
            self._check_given_out(cursor, after, _present(cursor, self._declaration)[1])

    def _check_given_out(self, cursor: Any, after: VectorToken, given_out: int | None) -> None:
        # A sequence is at 900, and the reader has read up to there. The sequence is set back to 850 in the same epoch. Without
        # this the reader would pass over the next facts, 851 to 900. On a standby a sequence may be behind the positions.
        if given_out is None or after.highest <= max(given_out, 1) or is_standby(cursor):
            return
        reader, stream = self._handler.reader, self._handler.stream
        raise EpochChanged(
            f"Reader {reader!r} of stream {stream!r}: its cursor is at {after.highest}, but the stream's sequence has given "
            f"out {given_out} only: it was set back, or the cursor was set by hand. The next facts would be passed over. If "
            f"manage.py check_streams finds the sequence wrong, repair that. Otherwise: manage.py resync reader {reader}."
        )

    def next(self, after: VectorToken) -> Batch:
        """Returns the next rows after the cursor ``after``, about as many as the handler's ``chunk_rows``.

        Uses new positions, from notifications or from the table, only after all facts up to the earlier positions were
        read. Raises ``EpochChanged``, ``ResyncNeeded`` or ``DatabaseError``.
        """
        with self._connection.cursor() as cursor:
            if self._target is None or next_range(after, self._target) is None:
                if (stored := self._heard_positions()) is not None:
                    try:
                        return self._read_heard(cursor, after, stored)
                    except NotSo:
                        pass  # the table has the answer
                self._target = self._look(cursor, after)
            # The positions are read before the rows. In the other order, the rows are read, fact 5 commits, its position is
            # stored and read, and the cursor moves past fact 5, which is not among the rows.
            return self._read(cursor, after, self._target)

    def _heard_positions(self) -> Mapping[str, StoredPosition] | None:
        """Returns the stream's positions from notifications, or None if the positions must be read from the table.

        Returns None at least once in each heartbeat interval, even if no notification was missed.
        """
        name, heard = self._declaration.name, self._heard.take()
        if time.monotonic() >= self._look_due:
            self._known.forget()
        return None if self._known.hear(heard, [name]) else self._known.known[name]

    def _look(self, cursor: Any, after: VectorToken) -> VectorToken:
        """Reads the positions from the table. Returns the token up to which facts may be delivered."""
        self._known.forget()  # before the read: if it fails, the next call must read the table again
        self._look_due = time.monotonic() + stream_settings().heartbeat_seconds
        stored, given_out = _present(cursor, self._declaration)
        self._check_given_out(cursor, after, given_out)
        self._known.looked({self._declaration.name: stored}, [self._declaration.name])
        self.writers = tuple(stored)
        return _target(self._handler.view, stored)

    def _read_heard(self, cursor: Any, after: VectorToken, stored: Mapping[str, StoredPosition]) -> Batch:
        """Returns the next rows up to ``stored``, which are positions from notifications.

        Raises ``NotSo`` if the table of positions does not confirm the positions, or if facts above ``after`` were
        trimmed.
        """
        # Rows, positions and low-water mark are read in one snapshot. Three things follow:
        # 1. Fact 5 commits, and later its position is stored. A snapshot that shows the position shows the fact.
        # 2. Writer A enters the stream: its row in the table of positions commits, A reserves 6, B reserves 7 and announces 7.
        #    A snapshot that shows B at 7 shows the row of A. ``stored`` does not have A, so the premise is false.
        # 3. A trim deletes facts and raises the mark in one transaction. A snapshot that lacks the facts shows the raised mark.
        # If the stream has two tables, the second is read in a later snapshot. That snapshot shows the same facts, or the mark.
        target = _target(self._handler.view, stored)
        batch = self._read(cursor, after, target, _confirmed(self._declaration.name, stored, after))
        self._target, self.writers = target, tuple(stored)
        watcher.before_shown({self._declaration.name: stored}, self._using)
        return batch

    def _read(self, cursor: Any, after: VectorToken, target: VectorToken, premise: Premise | None = None) -> Batch:
        if (reading := next_range(after, target)) is None:
            return Batch((), after, target)
        wanted = FactRange(reading.after, reading.upto, reading.writers)
        limit = self._pace.limit(self._handler.chunk_rows)
        rows, reached = table_rows(cursor, self._declaration, wanted, limit, premise)
        if premise is None:
            # The low-water mark is read after the rows. A trim deletes facts and moves the mark in one transaction. If the mark
            # were read first, a trim between the two queries would remove facts without an error here.
            check_not_trimmed(cursor, self._handler.stream, after, reader=self._handler.reader)
        self._pace.learn(rows)
        return Batch(due_rows(rows, after, target), after.after_partial_read(target, reached), target)

    def close(self) -> None:
        """Closes the database connection. A later use of this object opens another connection."""
        self._connection.close()
