"""Schemas of streams as Spark rows, made from the streams' declarations (pure but for pyspark and pyarrow types).

Each row has the columns of ``COMMON_COLUMNS``, followed by those of all tables of the stream. Columns with the same name in
several tables appear once. A column that a row's table does not have is null. Times are milliseconds since the Unix epoch.
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

#: Name and Spark type of the columns that all streams have.
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
    """Returns the declaration of a stream. A recorded stream is named ``NAME/stream``.

    Raises ``ValueError`` with the known names if there is no such stream.
    """
    if is_recorded(stream):
        return recorded_declaration(stream)
    known = {declared.name: declared for declared in (*events_catalog.declarations(), *streams_catalog.declarations())}
    if stream not in known:
        raise ValueError(f"there is no stream {stream!r}; known streams: {', '.join(known)}")
    return known[stream]


def fact_columns(declaration: StreamDeclaration) -> dict[str, ColumnKind]:
    """Returns name and kind of the columns of all tables, in the order in which they first appear.

    Raises ``ValueError`` if two tables have a column of the same name with different kinds.
    """
    found: dict[str, ColumnKind] = {}
    for table in declaration.tables:
        for column in table.stored:
            if found.setdefault(column.name, column.kind) is not column.kind:
                raise ValueError(f"stream {declaration.name}: column {column.name} has two kinds")
    return found


def spark_schema(declaration: StreamDeclaration) -> StructType:
    """Returns the schema of ``format("replsite")`` for a stream.

    Needs no Spark session, because Spark also asks for the schema where it has no session.
    """
    from pyspark.sql import types  # noqa: PLC0415 - the columns are useful without Spark

    kinds = {
        "string": types.StringType(),
        "bigint": types.LongType(),
        "boolean": types.BooleanType(),
        "array<string>": types.ArrayType(types.StringType()),
    }
    return types.StructType([types.StructField(name, kinds[kind]) for name, kind in _columns(declaration)])


def arrow_schema(declaration: StreamDeclaration, names: Sequence[str] | None = None) -> pa.Schema:
    """Returns the schema of a stream for Arrow batches.

    If ``names`` is given, the schema has only these columns, in that order.
    """
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
    """Returns the names of the columns in ``schema``, which a query or a write was given.

    Raises ``ValueError`` if the stream has no column of that name and type.
    """
    known = dict(_columns(declaration))
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if known.get(field.name) != kind:
            shown = ", ".join(f"{name} {own}" for name, own in known.items())
            raise ValueError(f"stream {declaration.name} has no column {field.name} {kind}; it has {shown}")
    return tuple(field.name for field in schema.fields)


def _columns(declaration: StreamDeclaration) -> list[tuple[str, str]]:
    return [*COMMON_COLUMNS, *((name, _SPARK_TYPES[kind]) for name, kind in fact_columns(declaration).items())]
