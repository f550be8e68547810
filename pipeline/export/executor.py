"""Reads one piece of an exported table in an executor, in the snapshot of the whole export (no Django).

Each piece has its own connection. Rows come as Arrow batches of some megabytes, so memory is bounded by the size of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg2.extensions

from events.format.client_format import pruned_json
from streams.db.long_transactions import NO_LIMITS

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ExportPiece", "Exporting", "arrow_schema", "read_export"]

_BATCH_BYTES = 4 * 1024 * 1024
_DAY = "day"


@dataclass(frozen=True, slots=True)
class Exporting:
    """The settings that all pieces of a table share.

    ``columns`` are (name, kind). If the table is divided by days, the last column is the day.
    """

    dsn: str
    snapshot: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ExportPiece:
    """The query of a piece, with all values inserted."""

    query: str


def arrow_schema(columns: Sequence[tuple[str, str]]) -> pa.Schema:
    """Returns the columns as an Arrow schema."""
    import pyarrow as pa  # noqa: PLC0415 - executors, and drivers that export

    kinds = {"string": pa.string(), "json": pa.string(), "int64": pa.int64(), "bool": pa.bool_(), "date": pa.date32()}
    return pa.schema([(name, kinds[kind]) for name, kind in columns])


def read_export(work: Exporting, piece: ExportPiece) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a piece.

    Raises an error if the snapshot is gone. The snapshot ends with the process of the export.
    """
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - executors only

    options = {"application_name": "replsite export", "connect_timeout": 10}
    dsn = psycopg2.extensions.make_dsn(work.dsn, **options)
    schema = arrow_schema(work.columns)
    with dbapi.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)})
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute(f"SET TRANSACTION SNAPSHOT '{work.snapshot}'")
        cursor.execute(NO_LIMITS)
        cursor.fetchall()
        cursor.execute(piece.query)
        for batch in cursor.fetch_record_batch():
            yield _as_exported(batch, schema)


def _as_exported(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - executors only

    columns: list[Any] = []
    for field, column in zip(schema, batch.columns, strict=True):
        found = column
        if field.name == "json":
            found = _without_redacted(batch)
        elif field.name == _DAY:
            found = column.cast(pa.int32())
        columns.append(found if found.type == field.type else found.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _without_redacted(batch: pa.RecordBatch) -> pa.Array:
    """Returns the column ``json``, with the pruned form of each redacted event."""
    import pyarrow as pa  # noqa: PLC0415 - executors only
    from pyarrow import compute  # noqa: PLC0415

    json, redacted = batch.column("json"), batch.column("redacted")
    if not compute.any(redacted).as_py():
        return json
    versions = batch.column("room_version")
    pruned = [
        pruned_json(text, version) if is_redacted and text is not None else text
        for text, version, is_redacted in zip(json.to_pylist(), versions.to_pylist(), redacted.to_pylist(), strict=True)
    ]
    return pa.array(pruned, pa.binary())
