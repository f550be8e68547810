"""Reads positions and then rows for the broadcaster, on a database connection of its own.

A stored position covers only facts that were committed before it was stored. So no fact is missed if positions are read
before rows (``streams.reading.rows``). All calls block, and only one thread may call at a time.
"""

from __future__ import annotations

import math
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
from streams.holds.look import locked_streams
from streams.reading import watcher
from streams.reading.possible_positions import LOCK_SECONDS, possible_positions, went_back
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
from streams.replication.protocol.rdata_sql import (
    FEW_TOKENS,
    can_write_lines,
    encode_lines,
    few_lines,
    few_rows_sql,
    lines_sql,
    plain_lines,
    plain_lines_sql,
)
from streams.runtime.logs import Condition, get_logger

log = get_logger(__name__)
#: Most rows of one writer that a round reads. The rest follows in the next round.
ROWS_PER_READ = 1_000
#: While positions are lower than they were, or gone, the epoch is read once in this time.
ASK_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Done:
    """The position up to which a round has read the facts of a writer."""

    stream: str
    writer: str
    position: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines of one stream. ``lines`` counts all lines, and ``rows`` the RDATA lines. All other lines are POSITION."""

    stream: str
    data: bytes
    lines: int
    rows: int = 0


@dataclass(slots=True)
class Round:
    """The result of one round of the broadcaster: the lines of all steps of the round, in order, and counts."""

    pieces: list[Piece] = field(default_factory=list)
    lines: int = 0
    facts: int = 0
    oversize: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """Stream -> number of RDATA lines."""
    done: list[Done] = field(default_factory=list)
    #: Streams that have more rows to read.
    has_more: set[str] = field(default_factory=set)


class BroadcastReader:
    """The part of the broadcaster that reads positions and facts from the database."""

    def __init__(self, announcer: Announcer, using: str, line_limit_bytes: int, name: str) -> None:
        self._announcer = announcer
        self._line_limit_bytes = line_limit_bytes
        self._using = using
        self._name = name
        self._known: dict[str, dict[str, StoredPosition]] = {}
        self._current_at = -math.inf
        """Monotonic start time of the last read that read all announced facts."""
        self._epoch = ""
        self._knows_epoch = False
        """True if ``_epoch`` was read on the present connection, and not from a standby."""
        self._has_many_rows: dict[str, bool] = {}
        """Stream -> true if its last read had a fact of several rows. The next read probably has one, too."""
        self._asks_again_at = -math.inf
        self._waits = Condition(log, "broadcaster.stream_locked", "broadcaster.stream_free")
        self._connection = driver.KeptConnection(using, name, reads_in_order=True, lock_seconds=LOCK_SECONDS)

    def snapshot(self) -> dict[str, dict[str, StoredPosition]]:
        """Returns all positions that are stored now, as ``{stream: {writer: position}}``. Raises `DatabaseRestored`."""
        started = time.monotonic()
        with self._at_work() as cursor:
            found = self._positions(cursor, None)
        self._current_at = started
        return found

    def reload(self) -> dict[str, dict[str, StoredPosition]]:
        """Returns all stored positions after the database was restored, like `snapshot`. Accepts the database's new epoch."""
        self._epoch, self._known = "", {}
        return self.snapshot()

    def _check_epoch(self, cursor: Any) -> None:
        # Once on each new connection; on a standby at every call.
        if self._knows_epoch:
            return
        # A standby returns its primary's epoch, even if it is about to be promoted and begin a new epoch. So the epoch of
        # a standby is read again each time. ``is_standby`` is called before the epoch is read. In the other order, a
        # standby returns the primary's epoch, is promoted, and then ``is_standby`` returns false. The old epoch would be
        # kept.
        standby = epochs.is_standby(cursor)
        found = epochs.current_epoch(cursor)
        if epochs.epoch_changed(self._epoch, found):
            raise DatabaseRestored(
                f"The database is in epoch {found}, and was in {self._epoch}: it was restored, or another one took over. "
                f"Clients are disconnected, and begin at its positions."
            )
        self._epoch, self._knows_epoch = found, not standby

    @contextmanager
    def _at_work(self) -> Iterator[Any]:
        # After an error, the next call checks the epoch.
        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except BaseException:
            self._knows_epoch = False
            raise

    def _positions(self, cursor: Any, only: Collection[str] | None) -> dict[str, dict[str, StoredPosition]]:
        # Cached values go first. Otherwise a client might receive a position, send a request to this process, and get a
        # cached value that is older than the position.
        self._check_epoch(cursor)
        found = possible_positions(cursor, None if only is None else sorted(only), self._known, reads_often=True)
        known = {name: at for name, at in self._known.items() if only is None or name in only}
        back = {name for name, at in known.items() if went_back({name: at}, found)}
        # What went back is not learned, so that the epoch is read again and again until it has begun.
        self._known.update({name: at for name, at in found.items() if name not in back})
        if back and time.monotonic() >= self._asks_again_at:
            # Not in each round: the stream may have no row because an operator has deleted it.
            self._asks_again_at = time.monotonic() + ASK_AGAIN_SECONDS
            # Without this: a dump is loaded in one transaction, and no statement of ours fails. The facts up to the position that
            # was shown last are missing in the dump, and those that get their IDs would reach no follower.
            self._knows_epoch = False
            self._check_epoch(cursor)
        watcher.before_shown(found, self._using)
        return found

    def round(self, only: Collection[str] | None = None) -> Round:
        """Makes the reading part of a round over the streams in ``only``, or over all streams if ``only`` is None.

        The caller must send the lines, and then call the announcer's ``record_sent`` for each entry of ``Round.done``. Raises
        `DatabaseRestored` and the driver's errors.
        """
        result = Round()
        cut: set[tuple[str, str]] = set()
        locked: set[str] = set()
        started = time.monotonic()
        with self._at_work() as cursor:
            for step in self._announcer.steps(self._positions(cursor, only), started, only):
                if (step.stream, step.writer) in cut or step.stream in locked:
                    continue
                try:
                    lines, position = self._carry_out(cursor, step)
                except driver.lock_timed_out as error:
                    # Such as during VACUUM FULL. The stream's other steps wait as well, so that none passes these facts.
                    locked |= {step.stream, *locked_streams(cursor)}
                    self._waits.begins(error, stream=step.stream)
                    continue
                # Not all rows were read. The writer's other steps wait for the rest: a Move would take followers past the
                # unread rows.
                if isinstance(step, Read) and position < step.upto:
                    cut.add((step.stream, step.writer))
                result.pieces.append(Piece(step.stream, lines.data, lines.count, lines.rows))
                result.lines += lines.count
                result.facts += lines.facts
                result.oversize += lines.oversize
                if lines.rows:
                    result.rows[step.stream] += lines.rows
                result.done.append(Done(step.stream, step.writer, position))
        result.has_more = {stream for stream, _ in cut}
        if only is None and not locked:
            self._waits.ends()
        if only is None and not cut and not locked:
            self._current_at = started  # not the end: facts announced since the start may be unread
        return result

    def close(self) -> None:
        self._connection.close()

    def _carry_out(self, cursor: Any, step: Step) -> tuple[Lines, int]:
        match step:
            case Announce(stream, writer, position):
                return Lines(position_line(stream, writer, position, position), 1), position
            case Move(stream, writer, previous, new):
                return Lines(position_line(stream, writer, previous, new), 1), new
        declaration = registry.get(step.stream).declaration
        plain = not self._has_many_rows.get(step.stream, False)
        lines, position = read_lines(cursor, declaration, step, self._line_limit_bytes, plain=plain)
        if lines.rows:
            self._has_many_rows[step.stream] = lines.facts < lines.rows
        # Facts that were trimmed before this read are missing in its lines. A POSITION whose ``prev`` is its own position makes
        # every follower fetch the facts, and learn that they are gone.
        if declaration.trimmable and self._is_behind() and _is_trimmed(cursor, declaration, step):
            return Lines(position_line(step.stream, step.writer, position, position), 1), position
        return lines, position

    def _is_behind(self) -> bool:
        # A fact is trimmed at least three heartbeats after it could be read.
        return time.monotonic() > self._current_at + 2 * stream_settings().heartbeat_seconds


def _is_trimmed(cursor: Any, declaration: StreamDeclaration, step: Read) -> bool:
    # Asked after the rows were read. Then followers fetch the facts, and get the error for trimmed facts.
    writer = None if declaration.announced_as else step.writer
    return bool(lost_facts(trim_mark(cursor, declaration.name), VectorToken(step.after), writer))


def read_lines(
    cursor: Any, declaration: StreamDeclaration, step: Read, line_limit_bytes: int, *, plain: bool = True
) -> tuple[Lines, int]:
    """Returns (lines of the step, position that they reach). If possible, the database encodes the lines.

    Pass ``plain`` true if each fact probably has one row. Then a faster statement is tried first, whose lines are the
    same.
    """
    if can_write_lines(declaration, step.writer):
        parameters = {
            "prefix": f"RDATA {step.stream} {step.writer} ",
            "writer": step.writer,
            "after": step.after,
            "upto": step.upto,
            "limit": ROWS_PER_READ,
        }
        if (found := encode_lines(step, _result(cursor, declaration, parameters, plain), line_limit_bytes)) is not None:
            return found
    writers = None if declaration.announced_as else [step.writer]  # one name for all writers: read the rows of all
    rows, reached = existing_rows(cursor, declaration, writers, step.after, step.upto, ROWS_PER_READ)
    return encode_rows(step, rows, reached, line_limit_bytes), reached


def _result(cursor: Any, declaration: StreamDeclaration, parameters: dict[str, Any], plain: bool) -> Sequence[Any]:
    """Returns a result of ``protocol.rdata_sql``: the text of the step's lines and its counts.

    Uses ``plain_lines`` or ``few_lines`` if each fact has one row, and otherwise the slower ``lines_sql``.
    """
    if plain and (text := plain_lines_sql(declaration)) is not None:
        upto, limit = parameters["upto"], parameters["limit"]
        if upto - parameters["after"] <= min(FEW_TOKENS, limit - 1):
            cursor.execute(few_rows_sql(declaration), parameters)
            result = few_lines(cursor.fetchall(), parameters["prefix"], upto)
        else:
            between = f"\n{parameters['prefix']}"
            cursor.execute(text, parameters | {"between": between})
            result = plain_lines(cursor.fetchone(), between, upto, limit)
        if result[1] == result[2]:  # as many lines as facts
            return result
    cursor.execute(lines_sql(declaration), parameters)
    return cursor.fetchone()
