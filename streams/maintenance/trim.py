"""Trims a stream: deletes old facts in small batches, but no fact that a registered reader still has to read.

Facts are deleted up to the lowest of three positions: the linear position, the position that every registered reader
has handled, and the position up to which the rule (``Keep``) lets facts go.

Registered readers are the stored cursors and the rows of ``streams_reader``: open connections and followers, Spark
queries, and named readers that store their cursor in another database.

A reader holds back the trimming only if its process was seen within the *horizon*, a duration such as seven days.
Readers that the caller names may be ignored, too. If such a reader comes back, its cursor is below the low-water mark,
and it gets ``ResyncNeeded``.

The functions need a cursor of a direct connection in autocommit mode. Positions are positive, also for backward
streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson

from streams.conf import stream_settings
from streams.core.declaration import FactTable
from streams.core.positions import linear_position, lowest_unread
from streams.core.queries import bounds_sql, order_sql, read_whole, token_sql
from streams.core.watermarks import trim_mark
from streams.db import driver
from streams.errors import NotTrimmable, TrimBusy
from streams.reading.possible_positions import possible_positions
from streams.runtime.logs import get_logger
from streams.stream import Stream

__all__ = [
    "DEFAULT_HORIZON",
    "HoldingReader",
    "Keep",
    "TrimPlan",
    "TrimRequest",
    "Trimmed",
    "plan_trim",
    "reader_limit",
    "trim",
]

log = get_logger(__name__)
DEFAULT_HORIZON = timedelta(days=7)
BATCH_ROWS = 2_000
PAUSE_SECONDS = 0.02

_CURSORS = """
SELECT reader, base, seen_at < clock_timestamp() - %(horizon)s FROM streams_storedcursor WHERE stream = %(stream)s
"""
#: Named readers with a stored cursor in this database are left out, because the cursor itself counts (``_CURSORS``). A
#: closed connection holds nothing back. A closed Spark query or named reader does hold trimming back, because it will
#: continue where it stopped.
_READERS = """
SELECT kind || ' ' || name, (positions -> %(stream)s)::text, heartbeat_at < clock_timestamp() - %(horizon)s
FROM streams_reader
WHERE positions ? %(stream)s AND (closed_at IS NULL OR kind = 'spark' OR left(key, 7) = 'reader ')
  AND NOT (left(key, 7) = 'reader ' AND EXISTS
      (SELECT FROM streams_storedcursor WHERE reader = substr(key, 8) AND stream = %(stream)s))
"""
_MARK = """
INSERT INTO streams_lowwatermark AS mark (stream, position, writers, rows_deleted, trimmed_at)
VALUES (%(stream)s, %(position)s, %(writers)s::jsonb, %(rows)s, clock_timestamp())
ON CONFLICT (stream) DO UPDATE SET position = greatest(mark.position, excluded.position),
    writers = mark.writers || excluded.writers, rows_deleted = mark.rows_deleted + excluded.rows_deleted,
    trimmed_at = excluded.trimmed_at
"""


@dataclass(frozen=True, slots=True)
class Keep:
    """The rule for what to keep: the newest ``facts`` facts, or the facts younger than ``age``.

    One of the two is set.
    """

    facts: int | None = None
    age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """The arguments of a trimming.

    ``ignored`` are names of readers that must not hold the trimming back. The module explains ``horizon``.
    """

    stream: Stream
    keep: Keep
    horizon: timedelta = DEFAULT_HORIZON
    ignored: tuple[str, ...] = ()
    dry_run: bool = False
    settle_seconds: float | None = None
    """Seconds to wait before the first deletion; None: three heartbeats."""


@dataclass(frozen=True, slots=True)
class HoldingReader:
    """A reader that needs all facts above ``position``.

    ``ignored`` is the reason why this reader is ignored. It is empty if the reader holds the trimming back.
    """

    reader: str
    position: int
    ignored: str = ""


@dataclass(frozen=True, slots=True)
class TrimPlan:
    """The limit up to which a stream may be trimmed, and the readers that hold it back.

    ``mark`` is the low-water mark, and ``linear`` the linear position. ``wanted`` is the limit that the rule (``Keep``)
    alone would set.
    """

    stream: str
    mark: int
    linear: int
    wanted: int
    obstacles: tuple[HoldingReader, ...] = ()

    @property
    def limit(self) -> int:
        """Returns the position up to which facts may be deleted."""
        return min([self.wanted, self.linear, *(one.position for one in self.obstacles if not one.ignored)])

    @property
    def slowest(self) -> HoldingReader | None:
        """Returns the reader that holds the trimming back most, or None if no reader does."""
        counted = [one for one in self.obstacles if not one.ignored and one.position < min(self.wanted, self.linear)]
        return min(counted, key=lambda one: one.position, default=None)


@dataclass(slots=True)
class Trimmed:
    """The result so far: the number of deleted rows, the last position, and the highest deleted fact of each writer."""

    rows: int = 0
    position: int = 0
    writers: dict[str, int] = field(default_factory=dict)


class _Batch:
    """Finds the next batch of facts, in order, up to the limit or to the first fact that is young enough to be kept."""

    def __init__(self, stream: Stream, young_since: Any) -> None:
        self._stream = stream
        self._young_since = young_since

    def upto(self, cursor: Any, after: int, limit: int) -> tuple[int, int]:
        """Returns (position, rows): the last position of the next batch above ``after``, and its number of rows.

        Returns (``after``, 0) if no fact may be deleted.
        """
        declaration = self._stream.declaration

        def fetch(table: FactTable, rows: int) -> list[tuple[int, bool]]:
            token = token_sql(declaration, table)
            cursor.execute(
                f"SELECT {token}, {table.received_column} >= %(young)s FROM {table.name} "
                f"WHERE {bounds_sql(declaration, table)} ORDER BY {order_sql(declaration, table)} LIMIT %(limit)s",
                {"young": self._young_since, "after": after, "upto": limit, "limit": rows},
            )
            found: list[tuple[int, bool]] = cursor.fetchall()
            return found

        reached, whole = read_whole(declaration, fetch, (after, limit), BATCH_ROWS)
        young = min((token for batch in whole for token, is_young in batch if is_young), default=None)
        if young is not None:
            reached = young - 1
        return max(reached, after), sum(token <= reached for batch in whole for token, _ in batch)


def plan_trim(cursor: Any, request: TrimRequest) -> TrimPlan:
    """Returns the plan for the present moment. Raises ``NotTrimmable``.

    A rule by age does not change the plan. It is applied later, when the facts are read.
    """
    stream, horizon, keep = request.stream, request.horizon, request.keep
    _check_trimmable(stream)
    stored = possible_positions(cursor, [stream.name]).get(stream.name, {})
    linear = linear_position(stored.values())
    obstacles = [
        *_cursor_obstacles(cursor, stream, horizon),
        *_reader_obstacles(cursor, stream, horizon, stored, linear),
    ]
    named = tuple(
        HoldingReader(one.reader, one.position, "ignored as asked")
        if one.reader.split(" ", 1)[-1] in request.ignored
        else one
        for one in obstacles
    )
    wanted = linear if keep.facts is None else _beyond_newest(cursor, stream, keep.facts, linear)
    return TrimPlan(stream.name, trim_mark(cursor, stream.name).position, linear, wanted, named)


def _check_trimmable(stream: Stream) -> None:
    declaration = stream.declaration
    if not declaration.trimmable:
        raise NotTrimmable(
            f"Stream {stream.name!r} cannot be trimmed: its tables ({', '.join(t.name for t in declaration.tables)}) are the "
            f"data itself. Its facts go with the data, by the commands of that data."
        )
    if declaration.in_memory:
        raise NotTrimmable(
            f"Stream {stream.name!r} cannot be trimmed: its facts are kept in memory and go with their writers."
        )


def _cursor_obstacles(cursor: Any, stream: Stream, horizon: timedelta) -> Iterator[HoldingReader]:
    cursor.execute(_CURSORS, {"stream": stream.name, "horizon": horizon})
    for reader, base, is_gone in cursor.fetchall():
        yield HoldingReader(f"reader {reader}", base, _gone(horizon) if is_gone else "")


def _reader_obstacles(
    cursor: Any, stream: Stream, horizon: timedelta, stored: Mapping[str, Any], linear: int
) -> Iterator[HoldingReader]:
    cursor.execute(_READERS, {"stream": stream.name, "horizon": horizon})
    for shown, vector, is_gone in cursor.fetchall():
        yield HoldingReader(
            shown, reader_limit(orjson.loads(vector), stored, linear), _gone(horizon) if is_gone else ""
        )


def _gone(horizon: timedelta) -> str:
    return f"not seen for {horizon}"


def reader_limit(vector: Mapping[str, int], stored: Mapping[str, Any], linear: int) -> int:
    """Returns the position up to which a reader has handled the facts of all writers.

    ``vector`` is the reader's ``{writer: position}``, ``stored`` the positions of the writers. The result is the
    reader's lowest position for a writer that it is behind. If the reader is behind no writer, the result is
    ``linear``. A writer that is missing in ``vector`` entered at or above the lowest position in ``vector``. So this
    lowest position is used for such a writer.
    """
    low = lowest_unread(vector, {writer: one.position for writer, one in stored.items()})
    return linear if low is None else low


def _beyond_newest(cursor: Any, stream: Stream, facts: int, linear: int) -> int:
    """Returns the position right below the newest ``facts`` facts; 0 if the stream has fewer facts."""
    if facts == 0:
        return linear
    declaration = stream.declaration
    selects = [
        f"(SELECT DISTINCT {token_sql(declaration, table)} AS token FROM {table.name} WHERE {bounds_sql(declaration, table)} "
        f"ORDER BY token DESC LIMIT %(facts)s)"
        for table in declaration.tables
    ]
    cursor.execute(
        f"SELECT DISTINCT token FROM ({' UNION ALL '.join(selects)}) AS newest ORDER BY token DESC OFFSET %(facts)s - 1 LIMIT 1",
        {"facts": facts, "after": 0, "upto": linear},
    )
    row = cursor.fetchone()
    return 0 if row is None else int(row[0]) - 1


def trim(cursor: Any, request: TrimRequest, pause: Callable[[float], object] = time.sleep) -> Iterator[Trimmed]:
    """Trims a stream batch by batch, and yields the total so far after each batch. With ``dry_run`` nothing is deleted.

    A trimming may be stopped after any batch and begun again. ``pause(seconds)`` is called before the first batch and
    after each batch; a dry run does not pause. Raises ``NotTrimmable``, and ``TrimBusy`` while another process trims
    the stream.
    """
    stream, done = request.stream, Trimmed()
    _check_trimmable(stream)
    with _only_one(cursor, stream):
        first = plan_trim(cursor, request)
        if not request.dry_run:
            # The linear position was read above. Another process may have read the same position, and be about to read
            # or to announce the facts up to it. The pause of some heartbeats gives it time to finish before the first
            # deletion.
            settle = request.settle_seconds
            pause(3 * stream_settings().heartbeat_seconds if settle is None else settle)
        batch = _Batch(stream, _young_since(cursor, request.keep))
        done.position = first.mark
        while True:
            # A reader that registers during this run lowers the limit. Facts that are appended during it are left to
            # the next run.
            limit = min(first.limit, plan_trim(cursor, request).limit)
            reached, rows = batch.upto(cursor, done.position, limit) if limit > done.position else (done.position, 0)
            if reached <= done.position:
                return
            if not request.dry_run:
                _delete(cursor, stream, (done.position, reached), done)
            else:
                done.rows += rows
            done.position = reached
            yield done
            if not request.dry_run:
                pause(PAUSE_SECONDS)


@contextmanager
def _only_one(cursor: Any, stream: Stream) -> Iterator[None]:
    key = driver.trim_key(cursor, stream.name)
    cursor.execute("SELECT pg_try_advisory_lock(%s)", [key])
    if not cursor.fetchone()[0]:
        raise TrimBusy(
            f"Stream {stream.name!r} is being trimmed by another process. Let it end, or end it, and try again."
        )
    try:
        yield
    finally:
        cursor.execute("SELECT pg_advisory_unlock(%s)", [key])


def _young_since(cursor: Any, keep: Keep) -> Any:
    """Returns the time from which facts are kept, fixed for the whole run; None if the rule is not by age."""
    if keep.age is None:
        return None
    cursor.execute("SELECT clock_timestamp() - %s", [keep.age])
    return cursor.fetchone()[0]


def _delete(cursor: Any, stream: Stream, bounds: tuple[int, int], done: Trimmed) -> None:
    """Deletes one batch and moves the low-water mark, in one transaction."""
    declaration, highest, rows = stream.declaration, dict[str, int](), 0
    # Readers read the rows first and the mark second. The mark is raised in the transaction that deletes. So a reader
    # that no longer finds the rows finds the raised mark.
    with driver.in_transaction(cursor):
        for table in declaration.tables:
            token = token_sql(declaration, table)
            cursor.execute(
                f"WITH gone AS (DELETE FROM {table.name} WHERE {bounds_sql(declaration, table)} "
                f"RETURNING {table.writer_column} AS writer, {token} AS token) "
                f"SELECT writer, max(token), count(*) FROM gone GROUP BY writer",
                {"after": bounds[0], "upto": bounds[1]},
            )
            for writer, token_of, count in cursor.fetchall():
                highest[writer] = max(token_of, highest.get(writer, 0))
                rows += count
        text = orjson.dumps(highest).decode()
        cursor.execute(_MARK, {"stream": stream.name, "position": bounds[1], "writers": text, "rows": rows})
    done.rows += rows
    done.writers |= highest
