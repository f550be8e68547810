"""Reads how far readers and writers are behind: which facts they lack, and how old the oldest of these is.

The number of queries does not depend on how many writers and readers there are. Tables and columns come from the
declarations of the streams. All IDs and positions are positive, also for backward streams, which store negative ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from replsite.live_rows.readers import ReaderRow
from replsite.live_rows.recorded import RecordedRow
from replsite.live_rows.streams import WriterRow
from replsite.status.unread import EMPTY, Unread, Window, unread
from streams.core.declaration import FactTable, StreamDeclaration, quoted
from streams.core.positions import RETIRED, lowest_unread
from streams.core.queries import bounds_sql, order_sql, token_sql
from streams.runtime.gc_pause import collector_paused

#: The number of newest facts that are read of each table of a stream. Within them lag is counted exactly.
WINDOW_FACTS = 2_000
#: The most rows that are searched for the oldest fact that a reader has not read.
SCAN_FACTS = 5_000
NO_LAG = Unread(0, True, None)

#: (ID, writer, time) of facts, newest first.
_Batch = list[tuple[int, str, datetime]]
#: A reader's positions on a stream, in a hashable form: (stream, writers, their positions in the same order).
_Vector = tuple[str, tuple[str, ...], tuple[int, ...]]


class Lags:
    """The lags of readers. Readers with equal positions on a stream share one lag."""

    def __init__(self) -> None:
        self.known: dict[_Vector, Unread] = {}
        #: The same lags by the ``id()`` of the positions on the stream. Most readers share these objects.
        self._by_id: dict[int, Unread] = {}

    def of(self, stream: str, have: Mapping[str, int]) -> Unread:
        """Returns the lag of readers with these positions."""
        found = self._by_id.get(id(have))
        if found is None:
            found = self._by_id[id(have)] = self.known.get(_vector(stream, have), NO_LAG)
        return found

    def add_recorded(self, recorded: Iterable[RecordedRow], readers: Sequence[ReaderRow]) -> None:
        """Adds the lags of readers of recorded streams. They are estimates, because a record may have positions only.

        The oldest fact that is unread is taken to be as old as the last move of its writer.
        """
        streams: dict[str, list[RecordedRow]] = {}
        for row in recorded:
            streams.setdefault(row.stream_name, []).append(row)
        for stream, have in (found for reader in readers for found in reader.positions.items() if found[0] in streams):
            late = [row for row in streams[stream] if row.position > have.get(row.writer, row.position)]
            if late:
                facts = sum(row.position - have[row.writer] for row in late)
                self.known[_vector(stream, have)] = Unread(facts, False, min(row.last_advance_at for row in late))

    def of_writer(self, row: WriterRow) -> Unread:
        return self.known.get((row.stream, (row.writer,), (row.position,)), NO_LAG)


def _vector(stream: str, have: Mapping[str, int]) -> _Vector:
    # Not sorted, because there may be very many. The database returns the writers of a vector in one order.
    return stream, tuple(have), tuple(have.values())


def facts_upto(writers: Iterable[WriterRow]) -> dict[str, int]:
    """Returns for each writer the position up to which it has facts that may be read."""
    return {
        row.writer: row.position if row.last_write_position is None else min(row.position, row.last_write_position)
        for row in writers
    }


def read_lags(
    cursor: Any,
    declarations: Mapping[str, StreamDeclaration],
    writers: Mapping[str, Sequence[WriterRow]],
    readers: Sequence[ReaderRow],
) -> Lags:
    """Computes the lags of readers, by comparing their positions with the newest facts of each stream.

    Also counts the facts above each active writer's position, because linear readers wait for these facts. ``declarations``
    and ``writers`` are by stream.
    """
    upto = {name: facts_upto(writers.get(name, ())) for name in declarations}
    heads = {name: max(found.values(), default=0) for name, found in upto.items()}
    behind: dict[_Vector, tuple[Mapping[str, int], int]] = {}
    lowest: dict[str, int] = {}
    with collector_paused():
        found = {_vector(stream, have): have for stream, have in _positions(upto, heads, writers, readers)}
        for vector, have in found.items():
            if (low := lowest_unread(have, upto[vector[0]])) is not None:
                behind[vector] = have, low
                lowest[vector[0]] = min(low, lowest.get(vector[0], low))
    windows = _read_windows(cursor, {name: (declarations[name], low, heads[name]) for name, low in lowest.items()})
    lags = Lags()
    far: list[tuple[_Vector, _FarBehind]] = []
    with collector_paused():
        for vector, (have, low) in behind.items():
            stream = vector[0]
            lag = lags.known[vector] = unread(have, upto[stream], windows.get(stream, EMPTY))
            # The oldest unread fact may lie below the window. One more query looks up these facts for all such vectors.
            if lag.below_window:
                far.append((vector, _FarBehind(declarations[stream], low, heads[stream], have)))
    for index, at in _read_oldest_unread(cursor, [wanted for _, wanted in far]).items():
        lag = lags.known[far[index][0]]
        oldest_at = at if lag.oldest_at is None else min(at, lag.oldest_at)
        lags.known[far[index][0]] = Unread(lag.facts, lag.exact, oldest_at)
    return lags


def _positions(
    declared: Mapping[str, Any],
    heads: Mapping[str, int],
    writers: Mapping[str, Sequence[WriterRow]],
    readers: Sequence[ReaderRow],
) -> Iterator[tuple[str, Mapping[str, int]]]:
    for positions in {id(reader.positions): reader.positions for reader in readers}.values():
        for stream, have in positions.items():
            if stream in declared and have:
                yield stream, have
    for row in (row for rows in writers.values() for row in rows):
        if row.state != RETIRED and row.position < heads.get(row.stream, 0):
            # The vector of a linear reader that waits for this writer: it has all facts up to the writer's position.
            yield row.stream, {row.writer: row.position}


@dataclass(frozen=True, slots=True)
class _FarBehind:
    """A reader's positions on a stream, if its oldest unread fact may lie below the stream's window (``replsite.status.unread``).

    ``low`` and ``high`` bound the IDs of the facts to search.
    """

    stream: StreamDeclaration
    low: int
    high: int
    have: Mapping[str, int]


def _read_windows(cursor: Any, wanted: Mapping[str, tuple[StreamDeclaration, int, int]]) -> dict[str, Window]:
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


def _read_oldest_unread(cursor: Any, vectors: Sequence[_FarBehind]) -> dict[int, datetime]:
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
