"""Schemas of streams as Spark rows, made from the streams' declarations (pure but for pyspark and pyarrow types).

Each row has the columns of ``COMMON_COLUMNS``, followed by the columns of all tables of the stream. If several tables
have a column of the same name, the row has this column once. A column that the fact's table does not have is null.
Times are milliseconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from events import declarations as events_catalog
from streams.catalog import declarations as streams_catalog
from streams.core import lookup
from streams.core.declaration import ColumnKind, StreamDeclaration
from streams.core.named_rows import NamedRow
from streams.core.recorded import is_recorded, recorded_declaration

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "COMMON_COLUMNS",
    "arrow_schema",
    "chosen_columns",
    "declaration_of",
    "fact_columns",
    "site_declarations",
    "spark_schema",
]

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
    ColumnKind.FLOAT: "double",
    #: JSON text
    ColumnKind.ARRAY: "string",
    #: The text that is in the row, too
    **dict.fromkeys(
        (
            ColumnKind.DECIMAL,
            ColumnKind.DATETIME,
            ColumnKind.DATE,
            ColumnKind.TIME,
            ColumnKind.DURATION,
            ColumnKind.UUID,
            ColumnKind.BINARY,
            ColumnKind.ADDRESS,
        ),
        "string",
    ),
}


def site_declarations() -> dict[str, StreamDeclaration]:
    """Returns the declarations of the streams that classes of the site's own program declare: name -> declaration.

    Without Django, the result is empty.
    """
    return {
        stream.name: stream.declaration
        for stream in lookup.all_streams()
        if any(isinstance(table.row, NamedRow) for table in stream.declaration.tables)
    }


def declaration_of(stream: str, site_streams: Mapping[str, StreamDeclaration] | None = None) -> StreamDeclaration:
    """Returns the declaration of a stream. A recorded stream is named ``NAME/stream``.

    ``site_streams`` has more declarations by the name of the stream (``site_declarations``). If there is no such stream, raises
    ``ValueError``, which lists the known names.
    """
    if is_recorded(stream):
        return recorded_declaration(stream)
    known = {declared.name: declared for declared in (*events_catalog.declarations(), *streams_catalog.declarations())}
    known |= site_streams or {}
    if stream not in known:
        raise ValueError(
            f"there is no stream {stream!r}; known streams: {', '.join(known)}. For a stream of your own, load Django "
            f"(django.setup) before pipeline.source.data_source.register(spark)"
        )
    return known[stream]


def fact_columns(declaration: StreamDeclaration) -> dict[str, ColumnKind]:
    """Returns the columns of all tables of a stream: name -> kind. Columns are in the order in which they first appear.

    Raises ``ValueError`` if two tables have a column of the same name with different kinds.
    """
    found: dict[str, ColumnKind] = {}
    for table in declaration.tables:
        for column in table.stored:
            if found.setdefault(column.key, column.kind) is not column.kind:
                raise ValueError(f"stream {declaration.name}: column {column.key} has two kinds")
    return found


def spark_schema(declaration: StreamDeclaration) -> StructType:
    """Returns the schema of ``format("replsite")`` for a stream.

    Needs no Spark session, because Spark also calls this function in processes without a session.
    """
    from pyspark.sql import types  # noqa: PLC0415 - the columns are useful without Spark

    kinds = {
        "string": types.StringType(),
        "bigint": types.LongType(),
        "boolean": types.BooleanType(),
        "double": types.DoubleType(),
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
        "double": pa.float64(),
        "array<string>": pa.list_(pa.string()),
    }
    kinds = dict(_columns(declaration))
    return pa.schema([(name, types[kinds[name]]) for name in (kinds if names is None else names)])


def chosen_columns(declaration: StreamDeclaration, schema: StructType) -> tuple[str, ...]:
    """Returns the names of the columns in ``schema``, the schema of a query or of rows to append.

    Raises ``ValueError`` if the stream lacks a column with the name and type that ``schema`` has.
    """
    known = dict(_columns(declaration))
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if known.get(field.name) != kind:
            shown = ", ".join(f"{name} {type_}" for name, type_ in known.items())
            raise ValueError(f"stream {declaration.name} has no column {field.name} {kind}; it has {shown}")
    return tuple(field.name for field in schema.fields)


def _columns(declaration: StreamDeclaration) -> list[tuple[str, str]]:
    return [*COMMON_COLUMNS, *((name, _SPARK_TYPES[kind]) for name, kind in fact_columns(declaration).items())]
