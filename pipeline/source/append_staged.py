"""Appends rows that Spark tasks have staged, in one transaction. Needs Django.

Runs in a process that is a writer of the stream and keeps no cached values (``pipeline.source.append_process``). This
writer reserves the IDs of the facts. A write is done once: its row in the table ``SourceWrite`` commits together with
the facts. A repeated write finds this row and appends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import Error, connections, transaction

from pipeline.errors import FactsNotAppended
from pipeline.source.write import PREFIX
from streams import registry
from streams.core.declaration import ColumnKind, quoted
from streams.stream_object import Stream
from streams.writing.process import current_writer
from streams.writing.side_effects import compact_keys

__all__ = ["Appended", "StagedWrite", "append_staged", "sweep"]

_FACTS_PER_STATEMENT = 500_000
_VALUES_PER_STATEMENT = 10_000
_KEPT = "90 days"
_LEFT_SECONDS = 86_400

_TAKE = """
INSERT INTO pipeline_sourcewrite (write_id, stream, writer, facts) VALUES (%(write_id)s, %(stream)s, '', 0)
ON CONFLICT (write_id) DO NOTHING RETURNING 1
"""
_DONE = "SELECT stream, facts, first_id, last_id FROM pipeline_sourcewrite WHERE write_id = %s"
_FINISH = """
UPDATE pipeline_sourcewrite SET writer = %(writer)s, facts = %(facts)s, first_id = %(first)s, last_id = %(last)s
WHERE write_id = %(write_id)s
"""
_FORGET = f"DELETE FROM pipeline_sourcewrite WHERE committed_at < clock_timestamp() - interval '{_KEPT}'"
_EXISTS = "SELECT to_regclass(%s) IS NOT NULL"
_LEFT = (
    "SELECT relname FROM pg_class WHERE relkind = 'r' AND starts_with(relname::text, %s) AND pg_table_is_visible(oid)"
)
_NOW = "SELECT extract(epoch FROM clock_timestamp())::bigint"


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """The rows to append as facts. ``staging`` is the staging table that holds them.

    ``attempts`` holds (number of the attempt, number of rows) for each task. Its order is the order of the facts.
    """

    stream: str
    write_id: str
    staging: str
    columns: tuple[str, ...]
    attempts: tuple[tuple[int, int], ...]

    @property
    def facts(self) -> int:
        """Returns the number of facts in all attempts together."""
        return sum(rows for _, rows in self.attempts)


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of a write: number of facts, first ID and last ID. Both IDs are null if the write had no rows.

    ``done_before`` is true if an earlier write under the same ``write_id`` appended these facts.
    """

    facts: int
    first: int | None = None
    last: int | None = None
    done_before: bool = False


def append_staged(write: StagedWrite, using: str) -> Appended:
    """Appends the staged rows as facts, unless an earlier write with this ``write_id`` has. Then drops the staging table.

    Raises ``FactsNotAppended`` if staged rows are missing, or if the ``write_id`` was used for another stream.
    """
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(_FORGET)
        # A and B append under the same write_id. B's insert waits until A's transaction ends. If A commits, B gets no row
        # back and reports A's facts. If A rolls back, B's insert succeeds and B appends.
        cursor.execute(_TAKE, {"write_id": write.write_id, "stream": write.stream})
        appended = _append(cursor, write, using) if cursor.fetchone() else _done_before(cursor, write)
    _drop(write.staging, using)  # after the commit: a table that cannot be dropped must not undo the append
    return appended


def _done_before(cursor: Any, write: StagedWrite) -> Appended:
    cursor.execute(_DONE, [write.write_id])
    stream, facts, first, last = cursor.fetchone()
    if stream != write.stream:
        raise FactsNotAppended(
            f"Stream {write.stream}: the writeId {write.write_id!r} was used for stream {stream}. Use another one."
        )
    return Appended(facts, first, last, done_before=True)


def _append(cursor: Any, write: StagedWrite, using: str) -> Appended:
    stream = registry.get(write.stream)
    _check_staged(cursor, write)
    ids: list[int] = []
    if write.facts > _FACTS_PER_STATEMENT:
        cursor.execute(f"CREATE INDEX ON {write.staging} (attempt, place)")
    # From the first reservation to the commit, the linear position waits for this transaction. So everything that can be
    # refused was checked above.
    for count in _shares(write.facts, _FACTS_PER_STATEMENT):
        with stream.reserve(count, using) as reservation:
            _insert(cursor, write, stream, reservation.ids, len(ids), current_writer(using).name)
            ids += reservation.ids
    _keep_newest(cursor, write, stream)
    appended = Appended(len(ids), ids[0], ids[-1]) if ids else Appended(0)
    who = current_writer(using).name if ids else ""
    values = {"writer": who, "facts": appended.facts, "first": appended.first, "last": appended.last}
    cursor.execute(_FINISH, {**values, "write_id": write.write_id})
    return appended


def _shares(whole: int, most: int) -> Iterator[int]:
    while whole > 0:
        yield min(whole, most)
        whole -= most


def _check_staged(cursor: Any, write: StagedWrite) -> None:
    """Raises ``FactsNotAppended`` if the staging table has fewer rows of an attempt than the task reported."""
    cursor.execute(_EXISTS, [write.staging])
    found: dict[int, int] = {}
    if cursor.fetchone()[0]:
        attempts = [attempt for attempt, _ in write.attempts]
        cursor.execute(
            f"SELECT attempt, count(*) FROM {write.staging} WHERE attempt = ANY(%s) GROUP BY attempt", [attempts]
        )
        found = dict(cursor.fetchall())
    if missing := sum(rows - found.get(attempt, 0) for attempt, rows in write.attempts):
        raise FactsNotAppended(
            f"Stream {write.stream}: {missing} of {write.facts} staged rows are gone from {write.staging}: PostgreSQL was "
            f"restarted after a crash, or the table was dropped. Nothing was appended; write again."
        )


def _insert(cursor: Any, write: StagedWrite, stream: Stream, ids: Sequence[int], done: int, writer: str) -> None:
    """Inserts one fact under each of ``ids``. The first ``done`` staged rows are skipped, because they are inserted already.

    The order of the facts is that of ``write.attempts``. Within an attempt it is that of the column ``place``.
    """
    table = stream.declaration.tables[0]
    kinds = {column.name: column.kind for column in table.stored}
    values = "".join(
        f", s.{quoted(name)}{'::jsonb' if kinds[name] is ColumnKind.JSON else ''}" for name in write.columns
    )
    names = "".join(f", {quoted(name)}" for name in write.columns)
    cursor.execute(
        f"""
        INSERT INTO {quoted(table.name)} ({quoted(table.id_column)}, {quoted(table.writer_column)}{names})
        SELECT %(sign)s * i.id, %(writer)s{values}
        FROM unnest(%(attempts)s::bigint[], %(bases)s::bigint[]) AS b(attempt, base)
        JOIN {write.staging} s ON s.attempt = b.attempt AND s.place >= %(done)s - b.base AND s.place < %(upto)s - b.base
        JOIN unnest(%(ids)s::bigint[]) WITH ORDINALITY AS i(id, n) ON i.n = b.base + s.place - %(done)s + 1
        ORDER BY i.n
        """,
        {
            "sign": stream.sign,
            "writer": writer,
            "attempts": [attempt for attempt, _ in write.attempts],
            "bases": _bases(write.attempts),
            "done": done,
            "upto": done + len(ids),
            "ids": list(ids),
        },
    )
    if cursor.rowcount != len(ids):
        raise FactsNotAppended(
            f"Stream {write.stream}: {cursor.rowcount} rows were found for {len(ids)} facts in {write.staging}. Nothing was "
            f"appended; write again."
        )


def _bases(attempts: Sequence[tuple[int, int]]) -> list[int]:
    """Returns, for each attempt in the list, the number of facts in all attempts before it."""
    bases, before = [], 0
    for _, rows in attempts:
        bases.append(before)
        before += rows
    return bases


def _keep_newest(cursor: Any, write: StagedWrite, stream: Stream) -> None:
    table = stream.declaration.tables[0]
    if not table.newest_per or not write.facts:
        return
    attempts = [attempt for attempt, _ in write.attempts]
    cursor.execute(
        f"SELECT DISTINCT {quoted(table.newest_per)}::text FROM {write.staging} WHERE attempt = ANY(%s) ORDER BY 1",
        [attempts],
    )
    values = [row[0] for row in cursor.fetchall()]
    for start in range(0, len(values), _VALUES_PER_STATEMENT):
        compact_keys(cursor, table, values[start : start + _VALUES_PER_STATEMENT])


# --- what is left behind ------------------------------------------------------------------------------------------


def sweep(using: str) -> list[str]:
    """Drops staging tables that are more than a day old, and returns their names.

    A table is kept if a task is writing to it at this moment. If a write takes longer than a day, its table may be
    dropped while no task is writing. Then the write fails, and appends nothing.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_NOW)
        now = cursor.fetchone()[0]
        cursor.execute(_LEFT, [PREFIX])
        names = [row[0] for row in cursor.fetchall()]
    return [name for name in names if now - _made_at(name, now) > _LEFT_SECONDS and _drop(name, using)]


def _made_at(name: str, now: int) -> int:
    try:
        return int(name.removeprefix(PREFIX).partition("_")[0], 16)
    except ValueError:  # not one of our staging tables: treated as new, so it is kept
        return now


def _drop(staging: str, using: str) -> bool:
    """Drops a staging table. Returns false if this fails, for example because a late task holds a lock on the table.

    A failure to drop the table does not make the write fail.
    """
    try:
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '2s'")
            cursor.execute(f"DROP TABLE IF EXISTS {staging}")
    except Error:  # usually the lock timeout; a later sweep drops the table
        return False
    return True
