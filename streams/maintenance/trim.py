"""Trimming of a stream: old facts are deleted in small batches, never beyond those that a registered reader has not read.

    limit = the least of: the linear position, what every registered reader has handled, what the rule keeps

Registered readers are the stored cursors and the rows of ``streams_reader``: open connections and followers, Spark
queries, and named readers that store their cursor in another database.

A reader holds back trimming as long as its process was seen within the horizon. A reader that is silent for longer, or is
to be ignored, does not. When it comes back it finds itself below the low-water mark and gets ``ResyncNeeded``.

Called with a cursor of a direct connection in autocommit mode. Positions are positive, also for backward streams.
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
#: Followers with a stored cursor in this database are left out: the cursor itself counts (``_CURSORS``). Closed
#: connections hold nothing back; Spark queries and named readers do, since they continue from where they were.
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
    """The rule of what to keep: the newest ``facts`` facts, or those received within ``age``. One of the two is given."""

    facts: int | None = None
    age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """The arguments of a trimming: stream, rule, horizon of readers, names of readers to ignore."""

    stream: Stream
    keep: Keep
    horizon: timedelta = DEFAULT_HORIZON
    ignored: tuple[str, ...] = ()
    dry_run: bool = False
    settle_seconds: float | None = None
    """Seconds to wait before the first deletion; None: three heartbeats."""


@dataclass(frozen=True, slots=True)
class HoldingReader:
    """A reader and the position beyond which it needs facts. ``ignored`` is the reason why it does not count, or empty."""

    reader: str
    position: int
    ignored: str = ""


@dataclass(frozen=True, slots=True)
class TrimPlan:
    """The limit up to which a stream may be trimmed, and the readers that hold it back.

    ``mark`` is the low-water mark, ``linear`` the linear position, ``wanted`` the limit by the rule.
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
        """Returns the reader that holds back facts which the rule would delete; None if there is none."""
        counted = [one for one in self.obstacles if not one.ignored and one.position < min(self.wanted, self.linear)]
        return min(counted, key=lambda one: one.position, default=None)


@dataclass(slots=True)
class Trimmed:
    """The result so far: rows deleted, the position reached, and for each writer its highest deleted fact."""

    rows: int = 0
    position: int = 0
    writers: dict[str, int] = field(default_factory=dict)


class _Batch:
    """The next facts in order, up to the limit and to the first fact that the age rule keeps."""

    def __init__(self, stream: Stream, young_since: Any) -> None:
        self._stream = stream
        self._young_since = young_since

    def upto(self, cursor: Any, after: int, limit: int) -> tuple[int, int]:
        """Returns (position, rows): the end of the next batch and its number of rows. (after, 0): nothing may be deleted."""
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

    The age rule is not part of the plan: it is applied when the facts are read.
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
    """Returns the position up to which a reader has handled everything.

    ``vector`` is the reader's ``{writer: position}``. The result is its least position among the writers that it is
    behind, or ``linear`` if it is behind none. A writer that is missing in ``vector`` entered at or above the least
    position in it, so it counts with that.
    """
    low = lowest_unread(vector, {writer: one.position for writer, one in stored.items()})
    return linear if low is None else low


def _beyond_newest(cursor: Any, stream: Stream, facts: int, linear: int) -> int:
    """Returns the position below the newest ``facts`` facts; 0 if there are no more than these."""
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
    """Trims a stream, one batch a step, and yields the figures so far after each. With ``dry_run`` nothing is deleted.

    May be stopped after any step and begun again. ``pause(seconds)`` is called before the first batch and after each.
    Raises ``NotTrimmable``, and ``TrimBusy`` while another process trims the stream.
    """
    stream, done = request.stream, Trimmed()
    _check_trimmable(stream)
    with _only_one(cursor, stream):
        first = plan_trim(cursor, request)
        if not request.dry_run:
            # The linear position was read above, some heartbeats before the first deletion. A process that had read it by
            # then, and was about to read or to announce the facts up to it, has done so.
            settle = request.settle_seconds
            pause(3 * stream_settings().heartbeat_seconds if settle is None else settle)
        batch = _Batch(stream, _young_since(cursor, request.keep))
        done.position = first.mark
        while True:
            # A reader that registered during the run lowers the limit. What was appended during it waits for the next run.
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
    """Returns the time of receipt from which facts are kept, one for the whole run; None without an age rule."""
    if keep.age is None:
        return None
    cursor.execute("SELECT clock_timestamp() - %s", [keep.age])
    return cursor.fetchone()[0]


def _delete(cursor: Any, stream: Stream, bounds: tuple[int, int], done: Trimmed) -> None:
    """Deletes one batch and moves the low-water mark, in one transaction."""
    declaration, highest, rows = stream.declaration, dict[str, int](), 0
    # Readers read rows first and the mark after them. With the mark in the same transaction as the deletion, a reader that
    # lacks the rows finds the mark raised.
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
