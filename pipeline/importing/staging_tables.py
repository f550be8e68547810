"""Defines the staging tables of an import: their names, their columns, and functions that write rows. Needs no Django.

Staging tables are UNLOGGED. Each table belongs to one job, and the table's name has the number of the job. So a late
task cannot write into another job's tables, and the tables of a killed job are found by the prefix of their names.
After a crash PostgreSQL empties the staging tables. The ledger is a staging table, too, so after a crash the job begins
again from the start.

Each task writes its rows and a row in the ledger in one transaction. If the task is repeated, it finds this row in the
ledger and does nothing. So staged rows exist exactly once, however often Spark retries.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from events.columns import EVENT_COLUMNS
from pipeline import connections
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
"""The statement raises ``work_mem`` for a transaction that sorts and joins many rows. Only a few such transactions run at a
time."""
_ROWS_PER_COPY = 5_000
OWN_COLUMNS = tuple(name for name in EVENT_COLUMNS if name != "room_id")
"""Columns of an event, without the room ID."""
_EVENT_KINDS = {
    **dict.fromkeys(("outlier", "soft_failed", "state_unresolved"), "boolean"),
    **dict.fromkeys(("topological_ordering", "origin_server_ts", "state_group"), "bigint"),
}


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A staging table of an import.

    The table's full name consists of a prefix, the job's number, and ``name``. ``columns`` holds (name, SQL type) of
    each column.
    """

    name: str
    columns: tuple[tuple[str, str], ...]

    def ddl(self, job: int) -> str:
        """Returns the statement that creates the table for a job."""
        columns = ", ".join(f'"{name}" {_sql_type(kind)}' for name, kind in self.columns)
        return f"CREATE UNLOGGED TABLE {table_name(job, self.name)} ({columns}) WITH ({_STORED})"

    def arrow_schema(self) -> pa.Schema:
        """Returns the columns of the table as an Arrow schema."""
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
"""Rows are written once and read twice. So values that fit a page are not compressed, and there is no vacuum."""


def _sql_type(kind: str) -> str:
    """Returns the SQL type of a column, with the collation "C" if the type is text.

    With this collation, PostgreSQL compares text by code point, as in the site's own tables.
    """
    words = kind.split(" ", 1)
    if words[0].startswith("text"):
        words[0] += ' COLLATE "C"'
    return " ".join(words)


def _table(name: str, **columns: str) -> StagedTable:
    return StagedTable(name, tuple(columns.items()))


STEPS = _table("step", step="text PRIMARY KEY", lines="bigint", seconds="bigint")
"""The ledger: one row for each finished step or part."""
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
"""Parsed events. ``seq`` is the place in the input (``sequence_number``).

The plan needs the other columns, and the rules of the room need ``packed``. ``fits`` is true if the event's content
matches its hash. Rooms are mixed in an input, so reading a room may touch one page for each event. The rows of a room
are read twice: once for ``packed``, once for ``json``."""
VERSIONS = _table("version", room_id="text PRIMARY KEY", room_version="text")
"""Room versions that create events announce, for bare events of other lines."""
BROKEN = _table("broken", seq="bigint", reason="text", detail="text", content="bytea")
"""The quarantine of the job: lines that are not loaded, with the reason."""
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
"""Tables with the computed rows of rooms. ``index`` numbers a room's events and ``number`` its state groups, from 0 in each
room. When the room is loaded, these numbers are mapped to IDs of the site.

``result_event`` has all columns of events but the JSON. Outliers have no prev events there, and only state events have
auth events."""
WORKING = _table("working", room_no="bigint PRIMARY KEY", events="bigint")
"""Progress of large rooms: the number of events done."""
STAGED_TABLES = (STEPS, VERSIONS, STAGED_EVENTS, BROKEN, WORKING, *RESULT_TABLES)


def table_name(job: int, name: str) -> str:
    """Returns the name of a job's staging table."""
    return f"{PREFIX}{job}_{name}"


def connect(dsn: str) -> Any:
    """Returns a connection for a task. Its session has no timeouts.

    A task may compute for long between its statements.
    """
    connection = connections.connect(dsn, "replsite spark staging")
    with connection, connection.cursor() as cursor:
        cursor.execute(NO_LIMITS_IN_SESSION)
    return connection


@contextmanager
def staging_connection(dsn: str) -> Iterator[Any]:
    """Yields a connection for a task, in a transaction that commits at the end of the block."""
    connection = connect(dsn)
    try:
        with connection:
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL synchronous_commit = off")
            yield connection
    finally:
        connection.close()


def copy_rows(cursor: Any, job: int, table: StagedTable, rows: Sequence[Sequence[Any]]) -> None:
    """Appends rows by binary COPY. The values of each row are in the order of the table's columns."""
    for start in range(0, len(rows), _ROWS_PER_COPY):
        copy_columns(cursor, job, table, [*zip(*rows[start : start + _ROWS_PER_COPY], strict=True)])


def copy_columns(cursor: Any, job: int, table: StagedTable, columns: Sequence[Sequence[Any]]) -> None:
    """Appends some thousand rows at once. ``columns`` has one sequence of values for each column of the table."""
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
