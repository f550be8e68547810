"""Reads positions and then rows for the broadcaster, on a database connection of its own.

A position covers only facts that were committed before it, so reading positions before rows is safe
(``streams.reading.rows``). Notifications are applied in the order in which they came, whichever thread makes the round
(``streams.reading.position_cache``). All calls block, and only one thread may call at a time. Only ``hear`` may be
called while another call runs.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from streams import epochs, registry
from streams.conf import stream_settings
from streams.core.declaration import StreamDeclaration
from streams.core.tokens import VectorToken
from streams.core.watermarks import lost_facts, trim_mark
from streams.db import driver
from streams.reading import watcher
from streams.reading.position_cache import PositionCache
from streams.reading.position_notifications import PositionNotification
from streams.reading.possible_positions import possible_positions
from streams.reading.rows import StoredPosition, existing_rows
from streams.replication.errors import DatabaseRestored
from streams.replication.protocol.announcer import (
    Announce,
    Announcer,
    Lines,
    Move,
    Read,
    Step,
    encode_rows,
    position_line,
)
from streams.replication.protocol.rdata_sql import can_write_lines, lines_sql, take_lines
from streams.writing import dead_writers

__all__ = ["BroadcastReader", "Done", "Round", "read_lines"]

#: Most rows of one writer that a round reads. The rest follows in the next round.
ROWS_PER_READ = 1_000
#: Most notifications that wait for a round. If there are more, all positions are read from the table instead.
MOST_WAITING = 10_000


@dataclass(frozen=True, slots=True)
class Done:
    """The position of a writer after a step that was carried out."""

    stream: str
    writer: str
    position: int


@dataclass(slots=True)
class Round:
    """The result of one round: the lines of all its steps, in order, and their counts."""

    data: bytes = b""
    lines: int = 0
    facts: int = 0
    oversize: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """Stream -> number of RDATA lines."""
    done: list[Done] = field(default_factory=list)
    #: Streams that have more rows to read.
    has_more: set[str] = field(default_factory=set)


class BroadcastReader:
    """The reading side of the broadcaster."""

    def __init__(self, announcer: Announcer, using: str, line_limit_bytes: int, name: str) -> None:
        self._announcer = announcer
        self._line_limit_bytes = line_limit_bytes
        self._using = using
        self._name = name
        in_memory = [stream.name for stream in registry.all_streams() if stream.declaration.in_memory]
        self._heard = PositionCache(may_begin_anew=in_memory.__contains__)
        self._waiting: list[PositionNotification | None] = []
        """Notifications since the last round or read of the table; null: some may be lost."""
        self._hearing = threading.Lock()
        self._current_at = -math.inf
        """Monotonic start time of the last read that read all announced facts."""
        self._epoch = ""
        self._knows_epoch = False
        """True if ``_epoch`` was read on the present connection, and not from a standby."""
        self._connection = driver.KeptConnection(using, name, reads_in_order=True)

    def hear(self, notifications: Sequence[PositionNotification]) -> None:
        """Queues received notifications for the next round. An empty list means that some may be lost.

        Called by the listener's thread alone, before it requests a round.
        """
        with self._hearing:
            if notifications and len(self._waiting) + len(notifications) <= MOST_WAITING:
                self._waiting.extend(notifications)
            else:
                self._waiting = [None]

    def _take_queued(self) -> list[PositionNotification | None]:
        with self._hearing:
            heard, self._waiting = self._waiting, []
        return heard

    def snapshot(self) -> dict[str, dict[str, StoredPosition]]:
        """Returns all stored positions at one moment. Raises `DatabaseRestored`."""
        began = time.monotonic()
        with self._at_work() as cursor:
            found = self._positions(cursor, None)
        self._current_at = began
        return found

    def reload(self) -> dict[str, dict[str, StoredPosition]]:
        """Returns all stored positions after the database was restored. Accepts the database's new epoch."""
        self._epoch = ""
        return self.snapshot()

    def _check_epoch(self, cursor: Any) -> None:
        """Raises `DatabaseRestored` if the database is in another epoch than on the connection before.

        Checks each new connection once. If the database is a standby, checks it every time.
        """
        if self._knows_epoch:
            return
        # A standby returns its primary's epoch, even if it is about to be promoted and begin one of its own. So its epoch is
        # read again each time. ``is_standby`` is asked before the epoch. In the other order, a standby could return the
        # primary's epoch, be promoted, and then answer that it is no standby: the old epoch would be kept.
        standby = is_standby(cursor)
        found = epochs.current_epoch(cursor)
        if epochs.epoch_changed(self._epoch, found):
            raise DatabaseRestored(
                f"The database is in epoch {found}, and was in {self._epoch}: it was restored, or another one took over. "
                f"Clients are disconnected, and begin at its positions."
            )
        self._epoch, self._knows_epoch = found, not standby

    @contextmanager
    def _at_work(self) -> Iterator[Any]:
        """Yields a database cursor. After an error, forgets the known positions and has the epoch checked again.

        The positions are not reliable then, because some received notifications may not have been applied.
        """
        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except BaseException:
            self._heard.forget()
            self._knows_epoch = False
            raise

    def _positions(self, cursor: Any, only: Collection[str] | None) -> dict[str, dict[str, StoredPosition]]:
        """Returns the positions of all writers of the streams in ``only``, or of all streams if it is null.

        The positions come from notifications if these suffice, and otherwise from the table. First drops the cached
        values that these positions invalidate, because a client that receives a position may send a request with this
        position to this process.
        """
        found = self._find_positions(cursor, only)
        watcher.before_shown(found, self._using)
        return found

    def _find_positions(self, cursor: Any, only: Collection[str] | None) -> dict[str, dict[str, StoredPosition]]:
        self._check_epoch(cursor)
        heard = self._take_queued()  # before the table is read: the table is then newer than all of these
        if only is None:
            return self._possible_positions(cursor, None)
        if None in heard:
            self._heard.forget()
        if unclear := self._heard.hear((notification for notification in heard if notification is not None), only):
            self._possible_positions(cursor, unclear)
        return self._heard.of(only)

    def _possible_positions(self, cursor: Any, only: Collection[str] | None) -> dict[str, dict[str, StoredPosition]]:
        found = possible_positions(cursor, None if only is None else sorted(only), self._heard.known)
        self._heard.looked(found, only)
        return found

    def round(self, only: Collection[str] | None = None) -> Round:
        """Reads and encodes the steps since the last round, of the streams in ``only`` or of all streams.

        The caller sends the lines, and then confirms each of ``done`` to the announcer. Raises `DatabaseRestored` and the
        driver's errors.
        """
        result = Round()
        pieces: list[bytes] = []
        cut: set[tuple[str, str]] = set()
        began = time.monotonic()
        with self._at_work() as cursor:
            for step in self._announcer.steps(self._positions(cursor, only), began, only):
                if (step.stream, step.writer) in cut:
                    continue
                lines, position = self._carry_out(cursor, step)
                # Rows are left. Other steps of this writer wait for them: a Move would take followers past these rows.
                if isinstance(step, Read) and position < step.upto:
                    cut.add((step.stream, step.writer))
                pieces.append(lines.data)
                result.lines += lines.count
                result.facts += lines.facts
                result.oversize += lines.oversize
                if lines.rows:
                    result.rows[step.stream] += lines.rows
                result.done.append(Done(step.stream, step.writer, position))
        result.data = b"".join(pieces)
        result.has_more = {stream for stream, _ in cut}
        if only is None and not cut:
            self._current_at = began  # not the end: facts announced since the start may be unread
        return result

    def resolve_dead_writers(self) -> None:
        """Retires writers that are proven dead. Otherwise readers would wait for them where no other process writes."""
        with self._at_work() as cursor:
            dead_writers.resolve_dead_writers(cursor, self._name)

    def close(self) -> None:
        """Closes the database connection."""
        self._connection.close()

    def _carry_out(self, cursor: Any, step: Step) -> tuple[Lines, int]:
        match step:
            case Announce(stream, writer, position):
                return Lines(position_line(stream, writer, position, position), 1), position
            case Move(stream, writer, previous, new):
                return Lines(position_line(stream, writer, previous, new), 1), new
        declaration = registry.get(step.stream).declaration
        lines, position = read_lines(cursor, declaration, step, self._line_limit_bytes)
        # Facts that were trimmed before this read are missing in its lines. A POSITION whose ``prev`` is its own position makes
        # every follower fetch the facts, and learn that they are gone.
        if declaration.trimmable and self._is_behind() and _is_trimmed(cursor, declaration, step):
            return Lines(position_line(step.stream, step.writer, position, position), 1), position
        return lines, position

    def _is_behind(self) -> bool:
        """Returns true if facts that were not read yet may already be trimmed.

        A fact is trimmed three heartbeats after it could be read, at the earliest. This returns true two heartbeats after
        the last complete read.
        """
        return time.monotonic() > self._current_at + 2 * stream_settings().heartbeat_seconds


def _is_trimmed(cursor: Any, declaration: StreamDeclaration, step: Read) -> bool:
    """Returns true if facts of the step were trimmed. Called after the rows of the step were read.

    Followers must then fetch these facts themselves, and get an error which says that the facts are gone.
    """
    writer = None if declaration.announced_as else step.writer
    return bool(lost_facts(trim_mark(cursor, declaration.name), VectorToken(step.after), writer))


def is_standby(cursor: Any) -> bool:
    """Returns true if the database is a standby of another one."""
    cursor.execute("SELECT pg_is_in_recovery()")
    return bool(cursor.fetchone()[0])


def read_lines(cursor: Any, declaration: StreamDeclaration, step: Read, line_limit_bytes: int) -> tuple[Lines, int]:
    """Returns a writer's next lines, and the position that they reach. If possible, the database encodes the lines."""
    if can_write_lines(declaration, step.writer):
        parameters = {
            "prefix": f"RDATA {step.stream} {step.writer} ",
            "writer": step.writer,
            "after": step.after,
            "upto": step.upto,
            "limit": ROWS_PER_READ,
        }
        cursor.execute(lines_sql(declaration), parameters)
        if (found := take_lines(step, cursor.fetchone(), line_limit_bytes)) is not None:
            return found
    writer = None if declaration.announced_as else step.writer  # one name for all writers: read the rows of all
    rows, reached = existing_rows(cursor, declaration, writer, step.after, step.upto, ROWS_PER_READ)
    return encode_rows(step, rows, reached, line_limit_bytes), reached
