"""Appends rows that Spark tasks have staged, in one transaction. Runs in the driver, which has Django installed.

A write is done once: its row in the table ``SourceWrite`` commits together with the facts. A repeated write finds this row
and appends nothing.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg2

from pipeline.connections import connect
from pipeline.errors import FactsNotAppended
from pipeline.source.staging import drop_staging
from streams.core.declaration import ColumnKind, FactTable, StreamDeclaration, quoted
from streams.db.driver import explain
from streams.db.long_transactions import NO_LIMITS
from streams.holds.hold import WRITE_AS
from streams.writing.newest_rows import compact_keys

__all__ = ["Appended", "StagedWrite", "append_staged"]

_VALUES_PER_STATEMENT = 10_000
_KEPT = "90 days"

_CLAIM = """
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


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """The rows to append as facts. ``staging`` is the staging table that holds them. ``writer`` is the writer of the facts.

    ``attempts`` holds (number of the attempt, number of rows) for each task. Its order is the order of the facts.
    """

    declaration: StreamDeclaration
    writer: str
    write_id: str
    staging: str
    columns: tuple[str, ...]
    attempts: tuple[tuple[int, int], ...]

    @property
    def stream(self) -> str:
        return self.declaration.name

    @property
    def table(self) -> FactTable:
        return self.declaration.tables[0]

    @property
    def facts(self) -> int:
        return sum(rows for _, rows in self.attempts)


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of a write: number of facts, first ID and last ID. Both IDs are None if the write had no rows.

    ``done_before`` is true if an earlier write under the same ``write_id`` appended these facts.
    """

    facts: int
    first: int | None = None
    last: int | None = None
    done_before: bool = False


def append_staged(write: StagedWrite, dsn: str) -> Appended:
    """Appends the staged rows as facts, unless an earlier write with this ``write_id`` has. Then drops the staging table.

    Raises ``FactsNotAppended`` if staged rows are missing, if the ``write_id`` was used for another stream, and with the reason
    if the database refuses the facts.
    """
    with closing(connect(dsn, "replsite spark append")) as connection:
        try:
            with connection, connection.cursor() as cursor:  # one transaction
                cursor.execute(NO_LIMITS)
                cursor.execute(_FORGET)
                # A and B append under the same write_id. B's insert waits until A's transaction ends. If A commits, B gets no
                # row back and reports A's facts. If A rolls back, B's insert succeeds and B appends.
                cursor.execute(_CLAIM, {"write_id": write.write_id, "stream": write.stream})
                appended = _append(cursor, write) if cursor.fetchone() else _done_before(cursor, write)
        except psycopg2.Error as error:
            raise FactsNotAppended(f"Stream {write.stream}: {explain(error)}") from error
        drop_staging(connection, write.staging)  # after the commit: a table that stays must not undo the append
        return appended


def _done_before(cursor: Any, write: StagedWrite) -> Appended:
    cursor.execute(_DONE, [write.write_id])
    stream, facts, first, last = cursor.fetchone()
    if stream != write.stream:
        raise FactsNotAppended(
            f"Stream {write.stream}: the writeId {write.write_id!r} was used for stream {stream}. Use another one."
        )
    return Appended(facts, first, last, done_before=True)


def _append(cursor: Any, write: StagedWrite) -> Appended:
    _check_staged(cursor, write)
    appended = _insert(cursor, write) if write.facts else Appended(0)
    _keep_newest(cursor, write)
    who = write.writer if write.facts else ""
    values = {"writer": who, "facts": appended.facts, "first": appended.first, "last": appended.last}
    cursor.execute(_FINISH, {**values, "write_id": write.write_id})
    return appended


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


def _insert(cursor: Any, write: StagedWrite) -> Appended:
    """Inserts the staged rows as facts. The facts get their IDs from the default of the table.

    The order of the facts is that of ``write.attempts``. Within an attempt it is that of the column ``place``.
    """
    table = write.table
    kinds = {column.name: column.kind for column in table.stored}
    names = ", ".join(map(quoted, write.columns))
    values = ", ".join(
        f"s.{quoted(name)}{'::jsonb' if kinds[name] is ColumnKind.JSON else ''}" for name in write.columns
    )
    cursor.execute(f"SELECT {WRITE_AS}", {"writer": write.writer})
    # From here to the commit, readers of the stream wait. So everything that can be refused was checked above.
    cursor.execute(
        f"""
        WITH stored AS (
            INSERT INTO {quoted(table.name)} ({names})
            SELECT {values}
            FROM unnest(%(attempts)s::bigint[]) WITH ORDINALITY AS given(attempt, n)
            JOIN {write.staging} s ON s.attempt = given.attempt
            ORDER BY given.n, s.place
            RETURNING abs({quoted(table.id_column)}) AS id
        )
        SELECT count(*), min(id), max(id) FROM stored
        """,
        {"attempts": [attempt for attempt, _ in write.attempts]},
    )
    appended = Appended(*cursor.fetchone())
    if appended.facts != write.facts:
        raise FactsNotAppended(
            f"Stream {write.stream}: {appended.facts} of {write.facts} rows of {write.staging} were inserted. Nothing was "
            f"appended; write again."
        )
    return appended


def _keep_newest(cursor: Any, write: StagedWrite) -> None:
    table = write.table
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
