"""Appends facts with ``format("replsite")``: tasks stage rows, and the driver appends them in one transaction.

    frame.write.format("replsite").option("dsn", DSN).option("stream", "caches").mode("append").save()

Each row becomes one fact, under an ID from the stream. IDs follow the order of partitions and rows. Options:

* ``dsn``: libpq connection string.
* ``stream``: name.
* ``writer``: name of the writer, default ``spark``.
* ``writeId``: name of the write. A write under a used name appends nothing. So a write can be repeated after any failure.

Each attempt of a task stages its rows in one transaction, under a random number that identifies the attempt. Only the
rows of attempts that Spark names in the commit are appended, and only if all these rows are present. So a repeated,
late or killed task does not change which facts are appended.

The job's staging table is created before the tasks start, and dropped after the last. A task that runs later finds no
table and fails. The table is UNLOGGED. So it is empty after a crash of PostgreSQL, and then the write fails as a whole.

The rows are appended by one INSERT (``pipeline.source.append_staged``), in the process in which Spark calls ``commit``.

Needs no Django.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from events import declarations as events_catalog
from pipeline.connections import connect
from pipeline.errors import FactsNotAppended
from pipeline.source.options import WriteOptions
from pipeline.source.staging import NOW, drop_staging, staging_name, sweep
from pipeline.source.stream_schemas import chosen_columns, declaration_of
from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration, quoted
from streams.core.json_codec import decode_json, encode_json
from streams.core.names import check_name, name_without_number
from streams.db.copy_in import copy_in
from streams.db.long_transactions import NO_LIMITS
from streams.errors import BadJson

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["FactWriter", "StagedRows", "fact_writer"]

_ROWS_PER_COPY = 10_000
_GIVEN_BY_APPEND = frozenset({"token", "writer", "received_at_ms"})
_STAGED_TYPES = {
    ColumnKind.TEXT: "text",
    ColumnKind.JSON_TEXT: "text",
    ColumnKind.JSON: "text",
    ColumnKind.BIGINT: "bigint",
    ColumnKind.BOOLEAN: "boolean",
    ColumnKind.TEXT_ARRAY: "text[]",
}
_NEEDED = """
SELECT a.attname, a.atthasdef OR a.attidentity <> '' FROM pg_attribute a
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attnotnull
"""


@dataclass(frozen=True, slots=True)
class StagedRows(WriterCommitMessage):
    """The message that a task sends to ``commit``: its partition, the number of its attempt, and how many rows it staged."""

    partition: int
    attempt: int
    rows: int


def fact_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> FactWriter:
    """Creates the staging table of one Spark job, and returns the ``FactWriter`` of the job.

    Raises ``ValueError`` in four cases: the job would overwrite facts, the facts of the stream are events, the columns do
    not fit the stream's table, or the writer's name cannot be one.
    """
    declaration = declaration_of(options.stream)
    check_name(options.writer)
    if overwrite:
        raise ValueError(f"facts are never overwritten: write to stream {declaration.name} with mode('append')")
    if declaration in events_catalog.declarations():
        raise ValueError(
            f"the facts of stream {declaration.name} are events, which have rules of their own: manage.py import_events"
        )
    names = chosen_columns(declaration, schema)
    if odd := sorted(_GIVEN_BY_APPEND.intersection(names)):
        raise ValueError(f"the stream gives each fact its {', '.join(odd)}: drop {', '.join(odd)} from what is written")
    table = declaration.tables[0]  # a stream that can be appended to has exactly one table
    columns = tuple(column for name in names for column in table.stored if column.name == name)
    with closing(_connect(options)) as connection, connection, connection.cursor() as cursor:
        filled = _check_columns(cursor, declaration, table, columns)
        cursor.execute(NOW)
        staging = staging_name(secrets.token_hex(8), cursor.fetchone()[0])
        of_facts = "".join(f", {quoted(column.name)} {_STAGED_TYPES[column.kind]}" for column in columns)
        cursor.execute(f"CREATE UNLOGGED TABLE {staging} (attempt bigint NOT NULL, place bigint NOT NULL{of_facts})")
    return FactWriter(options, staging, columns, filled)


def _connect(options: WriteOptions) -> Any:
    return connect(options.dsn, "replsite spark staging")


def _check_columns(
    cursor: Any, declaration: StreamDeclaration, table: FactTable, columns: Sequence[Column]
) -> tuple[str, ...]:
    """Returns the names of those of ``columns`` for which the table does not allow null.

    Raises ``ValueError`` if a column of the table is missing in ``columns``, but has no default and must not be null.
    """
    cursor.execute(_NEEDED, [quoted(table.name)])
    never_null = dict(cursor.fetchall())
    given = {column.name for column in columns}
    ours = {table.id_column, table.writer_column, table.received_column}
    missing = sorted(name for name, has_default in never_null.items() if not has_default and name not in given | ours)
    if missing:
        raise ValueError(
            f"a fact of stream {declaration.name} needs {', '.join(missing)}, which is not in what is written"
        )
    return tuple(sorted(given.intersection(never_null)))


class FactWriter(DataSourceArrowWriter):
    """Spark's interface for the rows of one Spark job. ``write`` runs in executors.

    ``commit`` and ``abort`` run in a process that Spark starts on the driver's machine.
    """

    def __init__(
        self, options: WriteOptions, staging: str, columns: tuple[Column, ...], never_null: tuple[str, ...]
    ) -> None:
        self.options = options
        self.staging = staging
        self.columns = columns
        self.never_null = never_null

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stages all rows of one attempt of a task in one transaction.

        Raises ``FactsNotAppended`` for a null that is not allowed, or for invalid JSON.
        """
        from pyspark import TaskContext  # noqa: PLC0415 - executors only

        context = TaskContext.get()
        # The attempt's number is random, because a late attempt of the same task may be staging at the same time.
        staged = StagedRows(context.partitionId() if context else 0, secrets.randbits(62), 0)
        rows = 0
        with closing(_connect(self.options)) as connection, connection, connection.cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = off")  # a crash empties the unlogged table anyway
            cursor.execute(NO_LIMITS)  # it may take long until Spark gives the next batch
            for batch in iterator:
                for start in range(0, batch.num_rows, _ROWS_PER_COPY):
                    some = batch.slice(start, _ROWS_PER_COPY)
                    self._copy(cursor, some, staged.attempt, rows)
                    rows += some.num_rows
        return StagedRows(staged.partition, staged.attempt, rows)

    def _copy(self, cursor: Any, batch: pa.RecordBatch, attempt: int, place: int) -> None:
        import pgpq  # noqa: PLC0415 - executors only
        import pyarrow as pa  # noqa: PLC0415

        found = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name in self.never_null:
            if found[name].null_count:
                raise FactsNotAppended(
                    f"Stream {self.options.stream}: column {name} must not be null. Nothing was appended."
                )
        arrays = {
            "attempt": pa.repeat(pa.scalar(attempt, pa.int64()), batch.num_rows),
            "place": pa.array(range(place, place + batch.num_rows), pa.int64()),
            **{column.name: self._staged(column, found[column.name]) for column in self.columns},
        }
        rows = pa.RecordBatch.from_pydict(arrays)
        encoder = pgpq.ArrowToPostgresBinaryEncoder(rows.schema)
        content = (encoder.write_header(), encoder.write_batch(rows), encoder.finish())
        copy_in(cursor, f"COPY {self.staging} FROM STDIN (FORMAT BINARY)", content)

    def _staged(self, column: Column, values: pa.Array) -> pa.Array:
        """Converts the values of a column to the form that the staging table has.

        JSON is re-encoded in the form in which streams send JSON, so that every reader of the stream can decode it.
        """
        import pyarrow as pa  # noqa: PLC0415 - executors only

        if column.kind not in (ColumnKind.JSON, ColumnKind.JSON_TEXT):
            return values
        try:
            texts = [None if text is None else encode_json(decode_json(text)).decode() for text in values.to_pylist()]
        except BadJson as error:
            raise FactsNotAppended(
                f"Stream {self.options.stream}: column {column.name} must be JSON text, and a row's is not: {error}. "
                f"Nothing was appended."
            ) from error
        return pa.array(texts, pa.string())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Appends the staged rows as facts, and drops old staging tables.

        Raises ``FactsNotAppended``, also if a task sent no message.
        """
        from pipeline.source.append_staged import StagedWrite, append_staged  # noqa: PLC0415 - executors have no Django

        staged = [message for message in messages if isinstance(message, StagedRows)]
        if len(staged) != len(messages):
            raise FactsNotAppended(
                f"Stream {self.options.stream}: {len(messages) - len(staged)} tasks did not report what they staged. Nothing "
                f"was appended; write again."
            )
        write = StagedWrite(
            declaration_of(self.options.stream),
            name_without_number(self.options.writer),
            self.options.write_id or self.staging,
            self.staging,
            tuple(column.name for column in self.columns),
            tuple((rows.attempt, rows.rows) for rows in sorted(staged, key=lambda rows: rows.partition)),
        )
        append_staged(write, self.options.dsn)
        sweep(self.options.dsn)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drops the staging table after a task failed, so that nothing is appended.

        If the table cannot be dropped, because a task is still running, a later write drops it (``sweep``).
        """
        with closing(_connect(self.options)) as connection:
            drop_staging(connection, self.staging)
