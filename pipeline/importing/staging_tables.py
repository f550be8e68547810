"""The staging tables of an import: their columns, their names, and how rows get into them (no Django).

Staging tables are UNLOGGED and belong to one job, which is part of their names: a task that finishes late can never write
into another job's tables, and whatever a killed job left is found by prefix. PostgreSQL empties them after a crash of its
own; the ledger table goes with them, so the job then begins anew.

Every task writes its rows and its ledger row in one transaction; a task that is repeated finds its ledger row and does
nothing. So staged rows exist exactly once, whatever Spark retries.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg2

from events.columns import EVENT_COLUMNS
from streams.db.long_transactions import NO_LIMITS_IN_SESSION

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BROKEN",
    "OWN_COLUMNS",
    "PREFIX",
    "RESULT_TABLES",
    "ROOMY",
    "STAGED_EVENTS",
    "STAGED_TABLES",
    "STEPS",
    "VERSIONS",
    "WORKING",
    "StagedTable",
    "connect",
    "copy_columns",
    "copy_rows",
    "staging_connection",
    "table_name",
]

PREFIX = "pipeline_stage_"
ROOMY = "SET LOCAL work_mem = '64MB'"
"""For transactions of the driver that sort and join many rows: there are a few at a time."""
_ROWS_PER_COPY = 5_000
OWN_COLUMNS = tuple(name for name in EVENT_COLUMNS if name != "room_id")
"""Columns of an event that are not its room's."""
_EVENT_KINDS = {
    **dict.fromkeys(("outlier", "soft_failed", "state_unresolved"), "boolean"),
    **dict.fromkeys(("topological_ordering", "origin_server_ts", "state_group"), "bigint"),
}


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A staging table: the part of its name behind the job's, and its columns with their SQL types."""

    name: str
    columns: tuple[tuple[str, str], ...]

    def ddl(self, job: int) -> str:
        """The statement that makes it."""
        columns = ", ".join(f'"{name}" {_sql_type(kind)}' for name, kind in self.columns)
        return f"CREATE UNLOGGED TABLE {table_name(job, self.name)} ({columns}) WITH ({_STORED})"

    def arrow_schema(self) -> pa.Schema:
        """The same columns for Arrow."""
        import pyarrow as pa  # noqa: PLC0415 - only where rows are written

        types = {
            "text": pa.string(),
            "bigint": pa.int64(),
            "boolean": pa.bool_(),
            "bytea": pa.binary(),
            "text[]": pa.list_(pa.string()),
        }
        return pa.schema([(name, types[kind.removesuffix(_KEY)]) for name, kind in self.columns])


_KEY = " PRIMARY KEY"
_STORED = "autovacuum_enabled = false, toast_tuple_target = 8160"
"""Rows are written once and read twice: nothing is compressed that fits a page, and nobody cleans up behind them."""


def _sql_type(kind: str) -> str:
    """Identifiers are compared by code point, as in the tables they go to."""
    words = kind.split(" ", 1)
    if words[0].startswith("text"):
        words[0] += ' COLLATE "C"'
    return " ".join(words)


def _table(name: str, **columns: str) -> StagedTable:
    return StagedTable(name, tuple(columns.items()))


STEPS = _table("step", step="text PRIMARY KEY", lines="bigint", seconds="bigint")
"""The ledger: one row for every finished piece of work."""
STAGED_EVENTS = _table(
    "event",
    seq="bigint",
    room_id="text",
    room_version="text",
    event_id="text",
    type="text",
    outlier="boolean",
    fits="boolean",
    stream_ordering="bigint",
    packed="bytea",
    json="bytea",
)
"""Events as parsed; ``seq`` is the place in the input: part number and line number within the part.

The columns are what the plan needs (``fits``: the content does its hash), ``packed`` is for the rules of the room. Rooms are
mixed in an input, so a room is read with a page for every event: it is done once for ``packed`` and once for ``json``.
"""
VERSIONS = _table("version", room_id="text PRIMARY KEY", room_version="text")
"""Room versions that create events announce to bare events of other lines."""
BROKEN = _table("broken", seq="bigint", reason="text", detail="text", content="bytea")
"""Lines that are not loaded."""
RESULT_TABLES = (
    _table(
        "result_room",
        room_no="bigint PRIMARY KEY",
        room_id="text",
        room_version="text",
        creator="text",
        create_event_id="text",
        current_state_unresolved="boolean",
        visibility_unresolved="boolean",
        events="bigint",
        backward="bigint",
        rejected="bigint",
        unresolved="bigint",
        groups="bigint",
    ),
    _table(
        "result_event",
        room_no="bigint",
        index="bigint",
        seq="bigint",
        given="bigint",
        backward="boolean",
        **{name: _EVENT_KINDS.get(name, "text") for name in OWN_COLUMNS},
        prev_event_ids="text[]",
        auth_event_ids="text[]",
    ),
    _table("result_forward", room_no="bigint", event_id="text"),
    _table("result_backward", room_no="bigint", event_id="text"),
    _table(
        "result_group",
        room_no="bigint",
        number="bigint",
        prev="bigint",
        chain="bigint",
        hops="bigint",
        keys="bigint",
        rows_to_read="bigint",
    ),
    _table(
        "result_group_delta",
        room_no="bigint",
        chain="bigint",
        number="bigint",
        type="text",
        state_key="text",
        event_id="text",
    ),
    _table("result_current", room_no="bigint", type="text", state_key="text", event_id="text", membership="text"),
    _table(
        "result_delta",
        room_no="bigint",
        index="bigint",
        type="text",
        state_key="text",
        event_id="text",
        prev_event_id="text",
    ),
    _table("result_visibility", room_no="bigint", user_id="text", kind="text", first="bigint", last="bigint"),
)
"""What follows from a room's history, by table; ``index`` and ``number`` are the room's own until IDs are reserved.

Of events there is everything but the JSON: prev events but of outliers, auth events of state events.
"""
WORKING = _table("working", room_no="bigint PRIMARY KEY", events="bigint")
"""How far large rooms are that are being worked out."""
STAGED_TABLES = (STEPS, VERSIONS, STAGED_EVENTS, BROKEN, WORKING, *RESULT_TABLES)


def table_name(job: int, name: str) -> str:
    """The name of a job's staging table."""
    return f"{PREFIX}{job}_{name}"


def connect(dsn: str) -> Any:
    """A connection of a task, which works out rows between its statements, for as long as that takes."""
    connection = psycopg2.connect(dsn, application_name="replsite spark staging", connect_timeout=10)
    with connection, connection.cursor() as cursor:
        cursor.execute(NO_LIMITS_IN_SESSION)
    return connection


@contextmanager
def staging_connection(dsn: str) -> Iterator[Any]:
    """A connection of a task, in a transaction that is committed at the end of the block."""
    connection = connect(dsn)
    try:
        with connection:
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL synchronous_commit = off")
            yield connection
    finally:
        connection.close()


def copy_rows(cursor: Any, job: int, table: StagedTable, rows: Sequence[Sequence[Any]]) -> None:
    """Append rows, in the order of the table's columns, by binary COPY."""
    for start in range(0, len(rows), _ROWS_PER_COPY):
        copy_columns(cursor, job, table, [*zip(*rows[start : start + _ROWS_PER_COPY], strict=True)])


def copy_columns(cursor: Any, job: int, table: StagedTable, columns: Sequence[Sequence[Any]]) -> None:
    """The same of some thousand rows at once, given as columns."""
    import pgpq  # noqa: PLC0415 - only where rows are written
    import pyarrow as pa  # noqa: PLC0415

    schema = table.arrow_schema()
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    encoder = pgpq.ArrowToPostgresBinaryEncoder(schema)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    content = io.BytesIO()
    content.writelines((encoder.write_header(), encoder.write_batch(batch), encoder.finish()))
    content.seek(0)
    cursor.copy_expert(f"COPY {table_name(job, table.name)} FROM STDIN (FORMAT BINARY)", content)
