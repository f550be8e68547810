"""Reads one piece of an exported table in an executor, in the snapshot of the whole export. Needs no Django.

Each piece is read on a connection of its own. Rows come as Arrow batches of some megabytes
(``pipeline.source.shared_snapshot``). So the memory of a task does not grow with its piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from events.format.client_format import pruned_json
from pipeline.source.shared_snapshot import in_snapshot, read_batches

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ExportPiece", "Exporting", "arrow_schema", "read_export"]

_DAY = "day"


@dataclass(frozen=True, slots=True)
class Exporting:
    """The settings for reading an exported table, the same for all its pieces.

    ``columns`` holds (name, kind) of each column. If the table is divided by days, the last column is the day.
    """

    dsn: str
    snapshot: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ExportPiece:
    """A piece of an exported table: the SQL query for its rows, with all values inserted as literals."""

    query: str


def arrow_schema(columns: Sequence[tuple[str, str]]) -> pa.Schema:
    """Returns an Arrow schema. ``columns`` holds (name, kind) of each column."""
    import pyarrow as pa  # noqa: PLC0415 - executors, and drivers that export

    kinds = {"string": pa.string(), "json": pa.string(), "int64": pa.int64(), "bool": pa.bool_(), "date": pa.date32()}
    return pa.schema([(name, kinds[kind]) for name, kind in columns])


def read_export(work: Exporting, piece: ExportPiece) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a piece as Arrow batches.

    Raises an error of the database driver if the snapshot has ended. The snapshot ends with the process of the export.
    """
    schema = arrow_schema(work.columns)
    with in_snapshot(work.dsn, work.snapshot, "replsite export") as cursor:
        for batch in read_batches(cursor, piece.query):
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
    """Returns the column ``json`` of a batch, in which each redacted event is replaced by its pruned form."""
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
