"""Reads the facts for a reader from the tables, up to positions, so that all facts read are complete.

No fact is skipped because it commits late, and trimmed facts are never skipped without an error. Both follow from the
order of reading in ``TableSource.next``. A ``TableSource`` has a database connection of its own, and only one thread at
a time may use it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streams import registry
from streams.core.declaration import StreamDeclaration
from streams.core.positions import linear_position, positions_to_show
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed, trim_mark
from streams.db import driver
from streams.epochs import check_epoch, current_epoch, is_standby
from streams.errors import EpochChanged
from streams.follow.handlers import Begin, Handler
from streams.follow.stored_cursors import CursorMoved
from streams.reading import watcher
from streams.reading.possible_positions import positions_and_sequence, seen_positions_and_sequence, went_back
from streams.reading.rows import StoredPosition, existing_rows
from streams.replication.common.batch_sizer import BatchSizer
from streams.replication.protocol.ordering import FollowedRow, View
from streams.replication.protocol.range_math import due_rows, next_range, target_of

#: Such keys are no holds: these have the number of a stream above.
_KEY_BITS = 52


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows to deliver now. ``cursor`` covers them, and ``target`` is the token up to which facts may be delivered."""

    rows: Sequence[FollowedRow]
    cursor: VectorToken
    target: VectorToken

    @property
    def is_last(self) -> bool:
        return next_range(self.cursor, self.target) is None


def present_token(cursor: Any, stream: str, using: str, *, may_read_ahead: bool) -> VectorToken:
    """Returns the present positions of a stream as a token. All facts that this token covers are committed.

    ``may_read_ahead`` is true if all that comes of the token is kept in the stream's database.
    """
    declaration = registry.get(stream).declaration
    return _target(View.WRITER, _present(cursor, declaration, using, may_read_ahead=may_read_ahead)[0])


def _present(
    cursor: Any, declaration: StreamDeclaration, using: str, *, may_read_ahead: bool
) -> tuple[dict[str, StoredPosition], int | None]:
    """Returns (``{writer: position}``, last value of the stream's sequence). The value is None if it is not known.

    A reader whose cursor and effects lie in the stream's database looks for itself, unless this process keeps values that
    follow the stored positions.
    """
    # Without the stored positions: the cursor is in a service's own database, and the reader looks, and handles fact 7. The
    # streams' server crashes before 7 is flushed, and gives 7 to another fact. The cursor is beyond it. Or a handler sends 7 to
    # a service outside, which takes the later 7 for one that it has.
    reads_ahead = may_read_ahead and not watcher.keeps_values(using)
    stored, given_out = (seen_positions_and_sequence if reads_ahead else positions_and_sequence)(cursor, declaration)
    # Drops cached values that these facts make outdated, before a handler uses them.
    watcher.before_shown({declaration.name: stored}, using)
    return stored, given_out


def _target(view: View, stored: Mapping[str, StoredPosition]) -> VectorToken:
    linear = linear_position(stored.values())
    return target_of(view, linear, positions_to_show(stored, linear))


class TableSource:
    """The source from which one handler loop reads the facts of its stream."""

    def __init__(self, handler: Handler, using: str) -> None:
        self._handler = handler
        self._declaration = registry.get(handler.stream).declaration
        self._using = using
        self._connection = driver.KeptConnection(using, f"replsite fetch {handler.reader}", reads_in_order=True)
        self._pace = BatchSizer()
        self._target: VectorToken | None = None
        self._stored: Mapping[str, StoredPosition] = {}
        self.writers: tuple[str, ...] = ()
        self.session_lock: int | None = None
        """The key of a lock that the session holds which looked last. None if this source goes by stored positions."""
        self._locked_on: Any = None

    def first_token(self) -> VectorToken:
        """Returns the token at which a reader without a stored cursor starts. The handler's option ``begin`` decides.

        Also makes the next call of ``next`` look, because the database may have been restored.
        """
        self._target = None
        with self._connection.cursor() as cursor:
            if self._handler.begin is Begin.OLDEST:
                mark = trim_mark(cursor, self._handler.stream)
                return VectorToken(mark.position)
            return _target(self._handler.view, self._present(cursor)[0])

    def epoch(self) -> str:
        with self._connection.cursor() as cursor:
            return current_epoch(cursor)

    def check_epoch(self, kept: str) -> None:
        handler = self._handler
        with self._connection.cursor() as cursor:
            check_epoch(cursor, kept, f"Reader {handler.reader} on stream {handler.stream}")

    def check_given_out(self, after: VectorToken) -> None:
        """Raises ``EpochChanged`` if a cursor lies above all IDs that the stream's sequence has given out."""
        with self._connection.cursor() as cursor:
            self._check_given_out(cursor, after, self._present(cursor)[1])

    def _present(self, cursor: Any) -> tuple[dict[str, StoredPosition], int | None]:
        if self._handler.may_read_ahead and self._locked_on is not cursor.connection:
            self.session_lock, self._locked_on = secrets.randbits(_KEY_BITS), cursor.connection
            cursor.execute("SELECT pg_try_advisory_lock(%(key)s)", {"key": self.session_lock})
        return _present(cursor, self._declaration, self._using, may_read_ahead=self._handler.may_read_ahead)

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

        Looks only after all facts up to the earlier positions were read. Raises ``EpochChanged``, ``ResyncNeeded``,
        ``CursorMoved`` or ``DatabaseError``.
        """
        with self._connection.cursor() as cursor:
            if self._target is None or next_range(after, self._target) is None:
                self._target = self._read_target(cursor, after)
            # The positions are read before the rows. In the other order, the rows are read, fact 5 commits, its position is
            # stored and read, and the cursor moves past fact 5, which is not among the rows.
            return self._read(cursor, after, self._target)

    def _read_target(self, cursor: Any, after: VectorToken) -> VectorToken:
        stored, given_out = self._present(cursor)
        if not self._handler.may_read_ahead:
            # Without this: a dump is loaded in one transaction, and no statement of ours fails. A cursor in another database
            # stays where it is, above facts that get their IDs again. Who begins again asks for the epoch.
            name, before, self._stored = self._declaration.name, self._stored, stored
            if went_back({name: before}, {name: stored}):
                raise CursorMoved
        self._check_given_out(cursor, after, given_out)
        self.writers = tuple(stored)
        return _target(self._handler.view, stored)

    def _read(self, cursor: Any, after: VectorToken, target: VectorToken) -> Batch:
        if (reading := next_range(after, target)) is None:
            return Batch((), after, target)
        limit = self._pace.limit(self._handler.chunk_rows)
        rows, reached = existing_rows(cursor, self._declaration, reading.writers, reading.after, reading.upto, limit)
        # The low-water mark is read after the rows. A trim deletes facts and moves the mark in one transaction. If the mark
        # were read first, a trim between the two queries would remove facts without an error here.
        check_not_trimmed(cursor, self._handler.stream, after, reader=self._handler.reader)
        self._pace.learn(rows)
        return Batch(due_rows(rows, after, target), after.after_partial_read(target, reached), target)

    def close(self) -> None:
        """Closes the database connection. A later use of this object opens another connection."""
        self._connection.close()
