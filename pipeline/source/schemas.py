"""Schemas of streams as Spark rows, from their declarations (pure but for pyspark and pyarrow types).

Every row has the columns of ``COMMON_COLUMNS`` and then those of all tables of the stream, each once by name; a column that
a row's table does not have is null. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from events import declarations as events_catalog
from streams.catalog import declarations as streams_catalog
from streams.core.declaration import ColumnKind, StreamDeclaration
from streams.core.recorded import is_recorded, recorded_declaration

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["COMMON_COLUMNS", "arrow_schema", "chosen_columns", "declaration_of", "fact_columns", "spark_schema"]

#: Name and Spark type of the columns that every stream has.
COMMON_COLUMNS = (
    ("fact_table", "string"),
    ("token", "bigint"),
    ("writer", "string"),
    ("received_at_ms", "bigint"),
)
_SPARK_TYPES = {
    ColumnKind.TEXT: "string",
    ColumnKind.BIGINT: "bigint",
    ColumnKind.BOOLEAN: "boolean",
    ColumnKind.JSON: "string",
    ColumnKind.JSON_TEXT: "string",
    ColumnKind.TEXT_ARRAY: "array<string>",
}


def declaration_of(stream: str) -> StreamDeclaration:
    """The declaration of a stream by name, a recorded one as ``NAME/stream``; ``ValueError`` names the known ones."""
    if is_recorded(stream):
        return recorded_declaration(stream)
    known = {declared.name: declared for declared in (*events_catalog.declarations(), *streams_catalog.declarations())}
    if stream not in known:
        raise ValueError(f"there is no stream {stream!r}; known streams: {', '.join(known)}")
    return known[stream]


def fact_columns(declaration: StreamDeclaration) -> dict[str, ColumnKind]:
    """Name and kind of the columns of all tables, in order of first appearance."""
    found: dict[str, ColumnKind] = {}
    for table in declaration.tables:
        for column in table.stored:
            if found.setdefault(column.name, column.kind) is not column.kind:
                raise ValueError(f"stream {declaration.name}: column {column.name} has two kinds")
    return found


def spark_schema(declaration: StreamDeclaration) -> StructType:
    """The schema of ``format("replsite")`` for a stream; made without a session, because Spark asks outside of one."""
    from pyspark.sql import types  # noqa: PLC0415 - the columns are useful without Spark

    kinds = {
        "string": types.StringType(),
        "bigint": types.LongType(),
        "boolean": types.BooleanType(),
        "array<string>": types.ArrayType(types.StringType()),
    }
    return types.StructType([types.StructField(name, kinds[kind]) for name, kind in _columns(declaration)])


def arrow_schema(declaration: StreamDeclaration, names: Sequence[str] | None = None) -> pa.Schema:
    """The same schema for Arrow batches; with ``names`` these columns only, in that order."""
    import pyarrow as pa  # noqa: PLC0415

    types = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "array<string>": pa.list_(pa.string()),
    }
    kinds = dict(_columns(declaration))
    return pa.schema([(name, types[kinds[name]]) for name in (kinds if names is None else names)])


def chosen_columns(declaration: StreamDeclaration, schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that was asked for; ``ValueError`` names one that the stream does not have so."""
    known = dict(_columns(declaration))
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if known.get(field.name) != kind:
            shown = ", ".join(f"{name} {own}" for name, own in known.items())
            raise ValueError(f"stream {declaration.name} has no column {field.name} {kind}; it has {shown}")
    return tuple(field.name for field in schema.fields)


def _columns(declaration: StreamDeclaration) -> list[tuple[str, str]]:
    return [*COMMON_COLUMNS, *((name, _SPARK_TYPES[kind]) for name, kind in fact_columns(declaration).items())]
