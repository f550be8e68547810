"""Trims a stream (``manage.py purge stream``): deletes old facts in small batches, but none that a reader has still to handle.

Facts are deleted up to the lowest of three positions: the linear position, the position up to which every registered
reader has handled all facts, and the position up to which the rule (``Keep``) allows deletion.

Registered readers are the stored cursors and the rows of ``streams_reader``: open connections and followers, Spark
queries, and named readers that store their cursor in another database.

A reader holds back the trimming only if its process was seen within the *horizon*, a duration such as seven days. The
caller may name further readers to ignore. If an ignored reader runs again, its cursor may be below the low-water mark,
and it then gets ``ResyncNeeded``.

The functions need a cursor in autocommit mode, on a connection that bypasses connection poolers. Positions are
positive, even for streams whose stored IDs count downwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import orjson

from streams.conf import stream_settings
from streams.core.declaration import FactTable, quoted
from streams.core.positions import linear_position, lowest_unread
from streams.core.queries import bounds_sql, order_sql, read_whole, token_sql
from streams.core.watermarks import trim_mark
from streams.db import driver
from streams.db.lock_holders import describe_lock_holder
from streams.errors import NotTrimmable, TrimBusy
from streams.holds.hold import CHANGE_FACTS
from streams.reading.possible_positions import possible_positions
from streams.runtime.logs import get_logger
from streams.stream_object import Stream

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
    """The rule that says which facts to keep: the newest ``facts`` facts, or the facts younger than ``age``.

    Either ``facts`` or ``age`` is set.
    """

    facts: int | None = None
    age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """The arguments of a trimming.

    The readers whose names are in ``ignored`` do not hold the trimming back. The module's docstring explains
    ``horizon``.
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

    ``ignored`` is the reason why the trimming ignores this reader. It is empty for a reader that is not ignored.
    """

    reader: str
    position: int
    ignored: str = ""


@dataclass(frozen=True, slots=True)
class TrimPlan:
    """The plan of a trimming: the position up to which facts may be deleted, and the readers that limit it.

    ``mark`` is the low-water mark, and ``linear`` the linear position. ``wanted`` is the position up to which the rule
    (``Keep``) allows deletion. ``obstacles`` are the registered readers, including those to ignore.
    """

    stream: str
    mark: int
    linear: int
    wanted: int
    obstacles: tuple[HoldingReader, ...] = ()

    @property
    def limit(self) -> int:
        return min([self.wanted, self.linear, *(r.position for r in self.obstacles if not r.ignored)])

    @property
    def slowest(self) -> HoldingReader | None:
        """Returns the reader that holds the trimming back most, or None if no reader holds the trimming back."""
        counted = [r for r in self.obstacles if not r.ignored and r.position < min(self.wanted, self.linear)]
        return min(counted, key=lambda r: r.position, default=None)


@dataclass(slots=True)
class Trimmed:
    """The totals of a trimming: the number of deleted rows, the position reached, and ``{writer: its highest deleted ID}``."""

    rows: int = 0
    position: int = 0
    writers: dict[str, int] = field(default_factory=dict)


class _Batch:
    """The search for the next batch of facts to delete. A batch has no fact that was inserted at ``young_since`` or later."""

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
                f"SELECT {token}, {quoted(table.received_column)} >= %(young)s FROM {quoted(table.name)} "
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
    """Returns the plan of a trimming that would begin now. Raises ``NotTrimmable``.

    The plan does not consider the ages of facts. A rule that keeps facts by age is applied later, when the facts are
    read.
    """
    stream, keep = request.stream, request.keep
    _check_trimmable(stream)
    linear, obstacles = _obstacles(cursor, request)
    wanted = linear if keep.facts is None else _beyond_newest(cursor, stream, keep.facts, linear)
    return TrimPlan(stream.name, trim_mark(cursor, stream.name).position, linear, wanted, obstacles)


def _obstacles(cursor: Any, request: TrimRequest) -> tuple[int, tuple[HoldingReader, ...]]:
    """Returns (linear position of the stream, registered readers with the positions above which they need facts)."""
    stream, horizon = request.stream, request.horizon
    # Not looked up: a follower begins at the stored positions, and would find its first facts trimmed.
    stored = possible_positions(cursor, [stream.name]).get(stream.name, {})
    linear = linear_position(stored.values())
    obstacles = [
        *_cursor_obstacles(cursor, stream, horizon),
        *_reader_obstacles(cursor, stream, horizon, stored, linear),
    ]
    return linear, tuple(
        replace(r, ignored="ignored as asked") if r.reader.split(" ", 1)[-1] in request.ignored else r
        for r in obstacles
    )


def _check_trimmable(stream: Stream) -> None:
    declaration = stream.declaration
    if not declaration.trimmable:
        raise NotTrimmable(
            f"Stream {stream.name!r} cannot be trimmed: its tables ({', '.join(t.name for t in declaration.tables)}) are the "
            f"data itself. Its facts go with the data, by the commands of that data."
        )
    if declaration.in_memory:
        raise NotTrimmable(
            f"Stream {stream.name!r} cannot be trimmed: its facts are kept in memory for some minutes only."
        )


def _cursor_obstacles(cursor: Any, stream: Stream, horizon: timedelta) -> Iterator[HoldingReader]:
    cursor.execute(_CURSORS, {"stream": stream.name, "horizon": horizon})
    for reader, base, is_silent in cursor.fetchall():
        yield HoldingReader(f"reader {reader}", base, _silent(horizon) if is_silent else "")


def _reader_obstacles(
    cursor: Any, stream: Stream, horizon: timedelta, stored: Mapping[str, Any], linear: int
) -> Iterator[HoldingReader]:
    cursor.execute(_READERS, {"stream": stream.name, "horizon": horizon})
    for shown, vector, is_silent in cursor.fetchall():
        yield HoldingReader(
            shown, reader_limit(orjson.loads(vector), stored, linear), _silent(horizon) if is_silent else ""
        )


def _silent(horizon: timedelta) -> str:
    return f"not seen for {horizon}"


def reader_limit(vector: Mapping[str, int], stored: Mapping[str, Any], linear: int) -> int:
    """Returns the position up to which a reader has handled the facts of all writers.

    ``vector`` is the reader's ``{writer: position}``, and ``stored`` maps writers to their stored positions. If the
    reader has handled all facts of all writers, returns ``linear``. Otherwise returns the lowest of the reader's
    positions on the writers whose facts it has not all handled. A writer that is missing in ``vector`` entered the
    stream at or above the lowest position in ``vector``. So the function uses this lowest position for such a writer.
    """
    low = lowest_unread(vector, {writer: at.position for writer, at in stored.items()})
    return linear if low is None else low


def _beyond_newest(cursor: Any, stream: Stream, facts: int, linear: int) -> int:
    """Returns the highest position below the newest ``facts`` facts, or 0 if the stream has fewer facts."""
    if facts == 0:
        return linear
    declaration = stream.declaration
    selects = [
        f"(SELECT DISTINCT {token_sql(declaration, table)} AS token FROM {quoted(table.name)} "
        f"WHERE {bounds_sql(declaration, table)} ORDER BY token DESC LIMIT %(facts)s)"
        for table in declaration.tables
    ]
    cursor.execute(
        f"SELECT DISTINCT token FROM ({' UNION ALL '.join(selects)}) AS newest ORDER BY token DESC OFFSET %(facts)s - 1 LIMIT 1",
        {"facts": facts, "after": 0, "upto": linear},
    )
    row = cursor.fetchone()
    return 0 if row is None else int(row[0]) - 1


def trim(cursor: Any, request: TrimRequest, pause: Callable[[float], object] = time.sleep) -> Iterator[Trimmed]:
    """Trims a stream batch by batch. After each batch yields the totals so far. With ``dry_run`` no fact is deleted.

    The caller may stop after any batch, and trim the rest by a later call. ``pause(seconds)`` is called before the
    first batch and after each batch, but not in a dry run. Raises ``NotTrimmable``, and ``TrimBusy`` while another
    process trims the stream.
    """
    stream, done = request.stream, Trimmed()
    _check_trimmable(stream)
    with _only_one(cursor, stream):
        first = plan_trim(cursor, request)
        if not request.dry_run:
            # The linear position was read above. Another process may have read the same position, and be about to read or
            # to announce the facts up to it. The pause of some heartbeats gives that process time to finish before the
            # first deletion.
            settle = request.settle_seconds
            pause(3 * stream_settings().heartbeat_seconds if settle is None else settle)
        batch = _Batch(stream, _young_since(cursor, request.keep))
        done.position = first.mark
        while True:
            # A reader that registers during this run lowers the limit. Facts that are appended during this run are left
            # to the next run. So the rule is not applied again for each batch. To apply the rule, all facts that it keeps
            # would be read.
            _, obstacles = _obstacles(cursor, request)
            limit = min([first.limit, *(r.position for r in obstacles if not r.ignored)])
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
            f"Stream {stream.name!r} is being trimmed by another process{describe_lock_holder(cursor, key)}. Let it end, or end "
            f"it, and try again."
        )
    try:
        yield
    finally:
        cursor.execute("SELECT pg_advisory_unlock(%s)", [key])


def _young_since(cursor: Any, keep: Keep) -> Any:
    # Called once per trimming, so that this time does not move while batches are deleted.
    if keep.age is None:
        return None
    cursor.execute("SELECT clock_timestamp() - %s", [keep.age])
    return cursor.fetchone()[0]


def _delete(cursor: Any, stream: Stream, bounds: tuple[int, int], done: Trimmed) -> None:
    """Deletes the facts with after < token <= upto, and raises the low-water mark, in one transaction.

    ``bounds`` is (after, upto). Adds the deleted rows and each writer's highest deleted ID to ``done``.
    """
    declaration, highest, rows = stream.declaration, dict[str, int](), 0
    # Readers read the rows first and the mark second. The mark is raised in the transaction that deletes. So a reader
    # that no longer finds the rows finds the raised mark.
    with driver.in_transaction(cursor):
        cursor.execute(CHANGE_FACTS)
        for table in declaration.tables:
            token = token_sql(declaration, table)
            cursor.execute(
                f"WITH gone AS (DELETE FROM {quoted(table.name)} WHERE {bounds_sql(declaration, table)} "
                f"RETURNING {quoted(table.writer_column)} AS writer, {token} AS token) "
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
