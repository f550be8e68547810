"""Defines the staging tables of an import: their names, their columns, and their connections. Needs no Django.

Staging tables are UNLOGGED. Each table belongs to one job, and the table's name has the number of the job. So a late
task cannot write into another job's tables, and the tables of a killed job are found by the prefix of their names.
After a crash PostgreSQL empties the staging tables. The ledger is a staging table, too, so after a crash the job begins
again from the start.

Each task writes its rows and a row in the ledger in one transaction. If the task is repeated, it finds this row in the
ledger and does nothing. So staged rows exist exactly once, however often Spark retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline import connections
from pipeline.frames.schemas import EVENTS
from streams.db.long_transactions import NO_LIMITS_IN_SESSION

__all__ = [
    "BROKEN",
    "EVENT_COLUMNS",
    "PREFIX",
    "ROOMY",
    "STAGED_EVENTS",
    "STAGED_TABLES",
    "STEPS",
    "VERSIONS",
    "WORKING",
    "StagedTable",
    "staging_connection",
    "table_name",
]

PREFIX = "pipeline_stage_"
ROOMY = "SET LOCAL work_mem = '64MB'"
"""The statement raises ``work_mem`` for a transaction that sorts and joins many rows. Only a few such transactions run at a
time."""
_STORED = "autovacuum_enabled = false, toast_tuple_target = 8160"
"""Rows are written once and read twice. So values that fit a page are not compressed, and there is no vacuum."""
#: Text is compared by code point, as in the site's own tables.
_TYPES = {
    "string": 'text COLLATE "C"',
    "bigint": "bigint",
    "boolean": "boolean",
    "binary": "bytea",
    "array<string>": 'text[] COLLATE "C"',
}
EVENT_COLUMNS = tuple(name for name in EVENTS.names if name not in ("source", "line"))
"""The columns of the frame ``events`` that are staged. The event's place in the sources is staged as ``seq``."""


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A staging table of an import. The table's full name consists of a prefix, the job's number, and ``name``."""

    name: str
    columns: str

    def ddl(self, job: int) -> str:
        """Returns the statement that creates the table for a job."""
        return f"CREATE UNLOGGED TABLE {table_name(job, self.name)} ({self.columns}) WITH ({_STORED})"


STEPS = StagedTable("step", 'step text COLLATE "C" PRIMARY KEY, lines bigint')
"""The ledger: one row for each finished step or part."""
STAGED_EVENTS = StagedTable(
    "event", ", ".join(["seq bigint", *(f"{name} {_TYPES[EVENTS.columns[name].type]}" for name in EVENT_COLUMNS)])
)
"""Parsed events. ``seq`` is the place in the input (``sequence_number``)."""
VERSIONS = StagedTable("version", 'room_id text COLLATE "C" PRIMARY KEY, room_version text')
"""Room versions that create events announce, for bare events of other lines."""
BROKEN = StagedTable("broken", "seq bigint, reason text, detail text, head bytea")
"""The quarantine of the job: lines that are not loaded, with the reason."""
WORKING = StagedTable("working", "room_no bigint PRIMARY KEY, events bigint")
"""The progress of large rooms: the number of events done."""
STAGED_TABLES = (STEPS, VERSIONS, STAGED_EVENTS, BROKEN, WORKING)


def table_name(job: int, name: str) -> str:
    """Returns the name of a job's staging table."""
    return f"{PREFIX}{job}_{name}"


@contextmanager
def staging_connection(dsn: str) -> Iterator[Any]:
    """Yields a connection for a task, in a transaction that commits at the end of the block.

    The session has no timeouts, because a task may compute for long between its statements.
    """
    connection = connections.connect(dsn, "replsite spark staging")
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(NO_LIMITS_IN_SESSION)
        with connection:
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL synchronous_commit = off")
            yield connection
    finally:
        connection.close()
