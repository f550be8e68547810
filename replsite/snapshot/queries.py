"""Reads streams, writers and readers for the snapshot, in a fixed number of set-based queries.

The number of queries does not depend on how many writers and readers there are. Tables and columns come from the
declarations of the streams. All functions take a Django cursor. All IDs and positions that they return are positive,
also for backward streams, which store negative ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from replsite.snapshot.types import RightsView, WaitingView
from replsite.status.lag import Window
from streams.core.declaration import FactTable, StreamDeclaration, quoted
from streams.core.json_codec import decode_stored_json
from streams.core.queries import bounds_sql, order_sql, token_sql
from streams.reading.reader_table import NAMED
from streams.runtime.gc_pause import collector_paused
from streams.runtime.silence import silent_seconds_sql

__all__ = [
    "CursorRow",
    "FarBehind",
    "KnownPositions",
    "PositionRow",
    "ReaderRow",
    "read_cursors",
    "read_oldest_unread",
    "read_positions",
    "read_readers",
    "read_time",
    "read_windows",
]

#: The number of newest facts that are read of each table of a stream. Within them lag is counted exactly.
WINDOW_FACTS = 2_000
#: The most rows that are searched for the oldest fact that a reader has not read.
SCAN_FACTS = 5_000
#: Dead letters of a reader on a stream are counted up to this number.
MOST_PARKED = 10_000
#: Readers with an older heartbeat are not shown. Named ones always are, until they are forgotten.
READER_MEMORY_SECONDS = 86_400
#: Closed readers are shown for this time. So are connections whose server is gone, because a connection never comes back.
CLOSED_MEMORY_SECONDS = 300
MOST_READERS = 5_000

_POSITIONS = """
SELECT stream, instance_name, abs(position), state, abs(last_write_position), last_fact_at, last_advance_at, facts_written, id
FROM streams_streamposition ORDER BY stream, state = 'retired', instance_name
"""
_READERS = f"""
SELECT key, name, kind, served_by, address, process_id, connected_at, heartbeat_at, jsonb_hash_extended(positions, 0),
       bytes_in, bytes_out, lines_in, lines_out, buffer_bytes, closed_at, close_reason,
       error, waiting_lines, kernel_send_bytes, kernel_read_bytes, queued::text, rights::text
FROM streams_reader
WHERE CASE WHEN left(key, {len(NAMED)}) = '{NAMED}' OR kind = 'spark' THEN true
           WHEN closed_at IS NOT NULL THEN {silent_seconds_sql("closed_at")} < {CLOSED_MEMORY_SECONDS}
           WHEN kind = 'connection' THEN {silent_seconds_sql("heartbeat_at")} < {CLOSED_MEMORY_SECONDS}
           ELSE {silent_seconds_sql("heartbeat_at")} < {READER_MEMORY_SECONDS} END
ORDER BY left(key, {len(NAMED)}) <> '{NAMED}', closed_at IS NOT NULL, kind, name, key LIMIT {MOST_READERS}
"""
#: Index in a row of the hash of the reader's positions.
_POSITIONS_HASH = 8
_POSITIONS_OF_READERS = (
    "SELECT jsonb_hash_extended(positions, 0), positions::text FROM streams_reader WHERE key = ANY(%s)"
)
#: Selects stored cursors. Each has figures of its dead letters: their number, the time of the first, the error of the last.
_CURSORS = f"""
SELECT c.reader, c.stream, c.base, c.entries::text, c.host, c.process_id, c.seen_at, c.moved_at, c.ended_at, c.error,
       coalesce(parked.facts, 0), parked.since, coalesce(last.error, ''),
       c.retry_asked_at IS NOT NULL AND c.retry_began_at IS NULL
FROM streams_storedcursor c
LEFT JOIN LATERAL (
    SELECT count(*) AS facts, min(parked_at) AS since FROM (
        SELECT parked_at FROM streams_parkedfact p WHERE p.reader = c.reader AND p.stream = c.stream
        ORDER BY p.token LIMIT {MOST_PARKED + 1}) AS few
) AS parked ON true
LEFT JOIN LATERAL (
    SELECT error FROM streams_parkedfact p WHERE p.reader = c.reader AND p.stream = c.stream ORDER BY p.token DESC LIMIT 1
) AS last ON true
ORDER BY c.error = '', c.reader, c.stream LIMIT {MOST_READERS}
"""

_NOTHING_WAITS = WaitingView()
KnownPositions = dict[int, Mapping[str, Mapping[str, int]]]
"""Positions of readers, ``{stream: {writer: position}}``, by the database's hash of them."""

#: (ID, writer, time) of facts, newest first.
_Batch = list[tuple[int, str, datetime]]


class PositionRow(NamedTuple):
    """A writer on a stream."""

    stream: str
    writer: str
    position: int
    state: str
    last_write_position: int | None
    last_fact_at: datetime | None
    last_advance_at: datetime
    facts_written: int
    row_id: int


class ReaderRow(NamedTuple):
    """A stored reader. ``positions`` is ``{stream: {writer: position}}``, all positive.

    Readers with equal positions have the same ``positions`` object, in this snapshot and in later ones.
    """

    key: str
    name: str
    kind: str
    served_by: str
    address: str
    process_id: int | None
    connected_at: datetime
    heartbeat_at: datetime
    positions: Mapping[str, Mapping[str, int]]
    bytes_in: int
    bytes_out: int
    lines_in: int
    lines_out: int
    buffer_bytes: int
    closed_at: datetime | None
    close_reason: str
    error: str = ""
    """The error that stopped the reader. Empty if the reader runs, or ended without an error."""
    waiting: WaitingView = _NOTHING_WAITS
    cursors: Mapping[str, CursorRow] = MappingProxyType({})
    """Stored cursors of a named reader by stream. Cursors in other databases than that of the streams are not known."""
    runs_on: frozenset[str] = frozenset()
    """Streams that a running process follows as this named reader."""
    has_row: bool = True
    """False if the reader has stored cursors but no row."""
    rights: RightsView | None = None

    @property
    def is_named(self) -> bool:
        """True if the reader is a named reader. A named reader is shown until an operator forgets it.

        Its cursors are stored in this database, or in the database to which its handlers write.
        """
        return self.key.startswith(NAMED)


@dataclass(frozen=True, slots=True)
class CursorRow:
    """A stored cursor of a named reader on a stream, with its dead letters.

    Also has the last process that ran the reader, and how that process ended.
    """

    reader: str
    stream: str
    base: int
    entries: Mapping[str, int]
    host: str
    process_id: int | None
    seen_at: datetime
    moved_at: datetime
    ended_at: datetime | None
    error: str
    parked_facts: int
    parked_since: datetime | None
    parked_error: str
    retry_waits: bool
    """True if an operator asked to retry dead letters, and no process has begun it."""


@dataclass(frozen=True, slots=True)
class FarBehind:
    """A reader's positions on a stream, if its oldest unread fact may lie below the stream's window (``replsite.status.lag``).

    ``low`` and ``high`` bound the IDs of the facts to search.
    """

    stream: StreamDeclaration
    low: int
    high: int
    have: Mapping[str, int]


def read_positions(cursor: Any) -> list[PositionRow]:
    """Returns all writers of all streams, sorted by stream. In each stream, retired writers come last."""
    cursor.execute(_POSITIONS)
    with collector_paused():
        return [PositionRow._make(row) for row in cursor.fetchall()]


def read_time(cursor: Any) -> datetime:
    """Returns the database's time."""
    cursor.execute("SELECT clock_timestamp()")
    (at,) = cursor.fetchone()
    return at


def read_readers(cursor: Any, known: KnownPositions) -> list[ReaderRow]:
    """Returns stored readers: the named ones first, then open ones, then closed ones.

    Readers that are not named are left out if their last heartbeat is old or they closed long ago. Spark queries are not,
    because their rows hold trimming back.

    Positions take much space, and many readers have equal ones. So the query returns hashes first. Positions are read only
    if their hash is not in ``known``, once for each hash. Afterwards ``known`` has the positions of the returned readers.
    """
    cursor.execute(_READERS)
    found = cursor.fetchall()
    keys = {row[_POSITIONS_HASH]: row[0] for row in found}
    if new := [key for number, key in keys.items() if number not in known]:
        cursor.execute(_POSITIONS_OF_READERS, [new])
        known |= {number: _vectors(text) for number, text in cursor.fetchall()}
    for number in known.keys() - keys.keys():
        del known[number]
    with collector_paused():
        return [_reader(row, known) for row in found]


def read_cursors(cursor: Any) -> list[CursorRow]:
    """Returns the stored cursors of named readers, those with an error first."""
    cursor.execute(_CURSORS)
    found = [list(row) for row in cursor.fetchall()]
    for values in found:
        values[3] = _entries(values[3])
    return [CursorRow(*values) for values in found]


def _entries(text: str) -> dict[str, int]:
    stored = decode_stored_json(text)
    return {writer: at for writer, at in stored.items() if isinstance(at, int)} if isinstance(stored, dict) else {}


def _reader(row: Sequence[Any], known: KnownPositions) -> ReaderRow:
    *values, lines, kernel_send, kernel_read, queued, rights = row
    # Missing if the caller's transaction has no fixed snapshot, and the row changed between the two queries.
    values[_POSITIONS_HASH] = known.get(row[_POSITIONS_HASH], {})
    is_waiting = lines or kernel_send or kernel_read or queued != "{}"
    waiting = WaitingView(lines, kernel_send, kernel_read, _queued(queued)) if is_waiting else _NOTHING_WAITS
    return ReaderRow._make((*values, waiting, {}, frozenset(), True, _rights(rights)))


def _rights(text: str | None) -> RightsView | None:
    stored = decode_stored_json(text) if text is not None else None
    if not isinstance(stored, dict):
        return None
    patterns = {kind: tuple(map(str, stored.get(kind, ()))) for kind in ("names", "streams", "reports")}
    refused, refusal = int(stored.get("refused", 0)), str(stored.get("refusal", ""))
    return RightsView(str(stored.get("certificate", "")), **patterns, refused=refused, refusal=refusal)


def _queued(text: str) -> dict[str, int]:
    stored = decode_stored_json(text)
    if not isinstance(stored, dict):
        return {}
    return {stream: rows for stream, rows in stored.items() if isinstance(rows, int)}


def _vectors(text: str) -> dict[str, dict[str, int]]:
    """Parses the stored positions of a reader: ``{stream: {writer: position}}``. Leaves out entries of an unexpected type."""
    stored = decode_stored_json(text)
    if not isinstance(stored, dict):
        return {}
    return {stream: _positive(vector) for stream, vector in stored.items() if isinstance(vector, dict)}


def _positive(vector: dict[str, Any]) -> dict[str, int]:
    # The usual vector is returned as it is: there may be hundreds of thousands of entries.
    if set(map(type, vector.values())) == {int} and min(vector.values()) >= 0:
        return vector
    return {writer: abs(at) for writer, at in vector.items() if isinstance(at, int)}


def read_windows(cursor: Any, wanted: Mapping[str, tuple[StreamDeclaration, int, int]]) -> dict[str, Window]:
    """Returns for each wanted stream its newest facts with ``low < ID <= high``, up to ``WINDOW_FACTS`` of each table.

    ``wanted``: ``{name: (declaration, low, high)}``.
    """
    if not wanted:
        return {}
    selects: list[str] = []
    values: dict[str, Any] = {}
    tables: list[tuple[str, int]] = []
    for name, (stream, low, high) in wanted.items():
        for table in stream.tables:
            values |= {f"low_{len(tables)}": low, f"high_{len(tables)}": high}
            selects.append(_window_sql(len(tables), stream, table))
            tables.append((name, low))
    cursor.execute(" UNION ALL ".join(f"({select})" for select in selects), values)
    with collector_paused():
        batches: list[_Batch] = [[] for _ in tables]
        for number, token, writer, received_at in cursor.fetchall():
            batches[number].append((token, writer, received_at))
        return {
            name: _window([(low, batch) for (table, low), batch in zip(tables, batches, strict=True) if table == name])
            for name in wanted
        }


def _window(tables: Sequence[tuple[int, _Batch]]) -> Window:
    """Returns the window of a stream: the newest facts of all of its tables.

    For each table, ``tables`` has the ID above which the table was read, and the facts that were read, newest first. Below
    some ID, a table may have facts that were not read. The window begins above the highest of these IDs.
    """
    # A batch that reached the limit may lack rows of its lowest ID and lacks all IDs below. It is complete above that.
    cut = [batch[-1][0] if len(batch) >= WINDOW_FACTS else low for low, batch in tables]
    complete_above = max(cut)
    return Window((fact for _, batch in tables for fact in batch if fact[0] > complete_above), complete_above)


def _window_sql(number: int, stream: StreamDeclaration, table: FactTable) -> str:
    """Returns the query for the newest facts of one table, newest first. The query uses the index on the ID.

    ``number`` numbers the table among all tables that are queried together.
    """
    condition = bounds_sql(stream, table, f"%(low_{number})s::bigint", f"%(high_{number})s::bigint")
    return (
        f"SELECT {number}, {token_sql(stream, table)}, {quoted(table.writer_column)}, {quoted(table.received_column)} "
        f"FROM {quoted(table.name)} WHERE {condition} "
        f"ORDER BY {order_sql(stream, table, newest_first=True)} LIMIT {WINDOW_FACTS}"
    )


def read_oldest_unread(cursor: Any, vectors: Sequence[FarBehind]) -> dict[int, datetime]:
    """Returns the receive time of the oldest unread fact for each of the ``vectors``, by index.

    A vector that lacks no fact has no entry.
    """
    by_stream: dict[str, list[int]] = {}
    for index, vector in enumerate(vectors):
        by_stream.setdefault(vector.stream.name, []).append(index)
    selects: list[str] = []
    values: dict[str, Any] = {}
    for group, indexes in enumerate(by_stream.values()):
        values |= {
            f"index_{group}": indexes,
            f"low_{group}": [vectors[index].low for index in indexes],
            f"high_{group}": [vectors[index].high for index in indexes],
            f"have_{group}": [orjson.dumps(dict(vectors[index].have)).decode() for index in indexes],
        }
        stream = vectors[indexes[0]].stream
        selects += [_oldest_sql(group, stream, table) for table in stream.tables]
    if not selects:
        return {}
    cursor.execute(" UNION ALL ".join(selects), values)
    found: dict[int, datetime] = {}
    for index, at in cursor.fetchall():
        found[index] = min(at, found.get(index, at))
    return found


def _oldest_sql(group: int, stream: StreamDeclaration, table: FactTable) -> str:
    """Returns a query on one table of a stream. It finds for each vector the oldest fact that the vector lacks.

    For each vector, the query walks up the index to that fact, over ``SCAN_FACTS`` rows at most. ``group`` numbers the
    stream among all streams that are queried together.
    """
    return f"""
        SELECT wanted.index, found.at FROM unnest(
            %(index_{group})s::int[], %(low_{group})s::bigint[], %(high_{group})s::bigint[], %(have_{group})s::jsonb[]
        ) AS wanted (index, low, high, have), LATERAL (
            SELECT walked.at FROM (
                SELECT {token_sql(stream, table)} AS token, {quoted(table.writer_column)} AS writer,
                       {quoted(table.received_column)} AS at
                FROM {quoted(table.name)} WHERE {bounds_sql(stream, table, "wanted.low", "wanted.high")}
                ORDER BY {order_sql(stream, table)} LIMIT {SCAN_FACTS}
            ) AS walked
            WHERE walked.token > coalesce((wanted.have ->> walked.writer)::bigint, wanted.low) LIMIT 1
        ) AS found"""
