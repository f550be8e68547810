"""Reading what the broadcaster sends: positions first, then rows, on a connection of its own.

Blocking; called by one thread at a time, but for ``hear``. Reading positions before rows is what makes it safe
(``streams.reading.rows``), and that what was heard is taken in the order in which it came, whichever thread makes the round
(``streams.replication.server.position_cache``).
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
from streams.reading import cache_feed
from streams.reading.pokes import PositionNotification
from streams.reading.possible_positions import possible_positions
from streams.reading.rows import StoredPosition, rows_that_are_there
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
from streams.replication.server.position_cache import PositionCache
from streams.writing import dead_writers

__all__ = ["BroadcastReader", "Done", "Round", "read_lines"]

#: Rows of one writer in one round; the rest follows in the next.
ROWS_PER_READ = 1_000
#: Pokes that wait for a round; when there are more, everything is looked up instead.
MOST_WAITING = 10_000


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was carried out, and where the writer is after it."""

    stream: str
    writer: str
    position: int


@dataclass(slots=True)
class Round:
    """One round: the lines of all its steps, in order, and what they say."""

    data: bytes = b""
    lines: int = 0
    facts: int = 0
    oversize: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """Stream -> RDATA lines."""
    done: list[Done] = field(default_factory=list)
    #: Streams of which there was more to read.
    has_more: set[str] = field(default_factory=set)


class BroadcastReader:
    """The broadcaster's reading side."""

    def __init__(self, announcer: Announcer, using: str, line_limit_bytes: int, name: str) -> None:
        self._announcer = announcer
        self._line_limit_bytes = line_limit_bytes
        self._using = using
        self._name = name
        in_memory = [stream.name for stream in registry.all_streams() if stream.declaration.in_memory]
        self._heard = PositionCache(may_begin_anew=in_memory)
        self._waiting: list[PositionNotification | None] = []
        """What was heard since the last round or look; null: some may be lost."""
        self._hearing = threading.Lock()
        self._current_at = -math.inf
        """When everything that was announced had been read."""
        self._epoch = ""
        self._knows_epoch = False
        """Whether it is that of the database at the other end of the present connection."""
        self._connection = driver.KeptConnection(using, name, reads_in_order=True)

    def hear(self, pokes: Sequence[PositionNotification]) -> None:
        """What came, before anybody is asked for a round; none: some may be lost. Called by the listener's thread alone."""
        with self._hearing:
            if pokes and len(self._waiting) + len(pokes) <= MOST_WAITING:
                self._waiting.extend(pokes)
            else:
                self._waiting = [None]

    def _take_heard(self) -> list[PositionNotification | None]:
        with self._hearing:
            heard, self._waiting = self._waiting, []
        return heard

    def snapshot(self) -> dict[str, dict[str, StoredPosition]]:
        """All stored positions at one moment."""
        began = time.monotonic()
        with self._at_work() as cursor:
            found = self._positions(cursor, None)
        self._current_at = began
        return found

    def begin_anew(self) -> dict[str, dict[str, StoredPosition]]:
        """All stored positions of a database that was restored; from now on it is the one that is read."""
        self._epoch = ""
        return self.snapshot()

    def _check_epoch(self, cursor: Any) -> None:
        """After a connection was lost: raises `DatabaseRestored` when the new one leads to another life of the database."""
        if self._knows_epoch:
            return
        standby = is_standby(cursor)  # it tells its primary's epoch, also when it is about to begin one of its own
        found = epochs.current_epoch(cursor)
        if epochs.is_another_life(self._epoch, found):
            raise DatabaseRestored(
                f"The database is in epoch {found}, and was in {self._epoch}: it was restored, or another one took over. "
                f"Clients are told to come back, and begin at its positions."
            )
        self._epoch, self._knows_epoch = found, not standby

    @contextmanager
    def _at_work(self) -> Iterator[Any]:
        """A cursor; after an error nothing that was heard is believed any more, since it may not have been looked up."""
        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except BaseException:
            self._heard.forget()
            self._knows_epoch = False
            raise

    def _positions(self, cursor: Any, only: Collection[str] | None) -> dict[str, dict[str, StoredPosition]]:
        """Where all writers are: as pokes said it, and looked up where they do not say enough.

        Clients are going to be told, and may come back to this process with what they were told.
        """
        found = self._find_positions(cursor, only)
        cache_feed.before_shown(found, self._using)
        return found

    def _find_positions(self, cursor: Any, only: Collection[str] | None) -> dict[str, dict[str, StoredPosition]]:
        self._check_epoch(cursor)
        heard = self._take_heard()  # before the look, which is newer than all of it
        if only is None:
            return self._look(cursor, None)
        if None in heard:
            self._heard.forget()
        if unclear := self._heard.hear((poke for poke in heard if poke is not None), only):
            self._look(cursor, unclear)
        return self._heard.of(only)

    def _look(self, cursor: Any, only: Collection[str] | None) -> dict[str, dict[str, StoredPosition]]:
        found = possible_positions(cursor, None if only is None else sorted(only), self._heard.known)
        self._heard.looked(found, only)
        return found

    def round(self, only: Collection[str] | None = None) -> Round:
        """Read and encode what moved since the last round; ``done`` is to be told to the announcer.

        Looks at the streams in ``only``, when given.
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
            self._current_at = began
        return result

    def resolve_dead_writers(self) -> None:
        """Retire writers that are proven dead, so that nobody waits for them where no other process writes."""
        with self._at_work() as cursor:
            dead_writers.resolve_dead_writers(cursor, self._name)

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()

    def _carry_out(self, cursor: Any, step: Step) -> tuple[Lines, int]:
        match step:
            case Announce(stream, writer, position):
                return Lines(position_line(stream, writer, position, position), 1), position
            case Move(stream, writer, previous, new):
                return Lines(position_line(stream, writer, previous, new), 1), new
        declaration = registry.get(step.stream).declaration
        lines, position = read_lines(cursor, declaration, step, self._line_limit_bytes)
        if declaration.trimmable and self._is_behind() and _is_trimmed(cursor, declaration, step):
            return Lines(position_line(step.stream, step.writer, position, position), 1), position
        return lines, position

    def _is_behind(self) -> bool:
        """Whether facts that were not read yet may be trimmed: that begins three heartbeats after they could be."""
        return time.monotonic() > self._current_at + 2 * stream_settings().heartbeat_seconds


def _is_trimmed(cursor: Any, declaration: StreamDeclaration, step: Read) -> bool:
    """Asked after the rows were read. Whoever follows must ask for them by itself then, and is told that they are gone."""
    writer = None if declaration.announced_as else step.writer
    return bool(lost_facts(trim_mark(cursor, declaration.name), VectorToken(step.after), writer))


def is_standby(cursor: Any) -> bool:
    """Whether the database only follows another one."""
    cursor.execute("SELECT pg_is_in_recovery()")
    return bool(cursor.fetchone()[0])


def read_lines(cursor: Any, declaration: StreamDeclaration, step: Read, line_limit_bytes: int) -> tuple[Lines, int]:
    """A writer's next lines and the position they reach; written by the database wherever it can."""
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
    writer = None if declaration.announced_as else step.writer
    rows, reached = rows_that_are_there(cursor, declaration, writer, step.after, step.upto, ROWS_PER_READ)
    return encode_rows(step, rows, reached, line_limit_bytes), reached
