"""Writes one file of an archive from a query, and checks it against the database's digest. Needs no Django.

Runs in Spark's driver or in executors. All queries for an archive use one snapshot, which the driver keeps open. When
``write_part`` returns, the file is on disk and was read back. Its row count and digest equal those that the database
computed. A repeated task writes its file again.

Arrow, its PostgreSQL driver and pandas are imported only where a file is written or read. Imports at the top of the
module would add a second to the start of every command.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.archive.format import TABLES, ArchivedFile, digest_of, file_sha256
from pipeline.errors import ArchiveDamaged
from pipeline.private_files import open_new

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArchivePart", "count_rows", "digest_sql", "read_batches", "write_part"]

_ROWS_PER_GROUP = 10_000


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """A file to write. ``query`` is the SQL that returns the file's rows in order, with the columns of ``table``."""

    table: str
    name: str
    query: str


def digest_sql(table: str, query: str) -> str:
    """Returns an SQL query with the result (number of rows, digest) for the rows of ``query``.

    ``format.digest_of`` computes the same digest from Arrow batches.
    """
    names = [name for name in TABLES[table].of_digest if name != "json"]
    values = ", ".join(f"coalesce({name}::text, '\\N')" for name in names)
    line = f"convert_to(concat_ws(chr(31), {values}), 'UTF8')"
    if "json" in TABLES[table].of_digest:
        line += " || '\\x1f'::bytea || coalesce(json, ''::bytea)"
    return (
        "SELECT count(*), encode(sha256(coalesce(string_agg(hash, ''::bytea ORDER BY place), ''::bytea)), 'hex') "
        f"FROM (SELECT sha256({line}) AS hash, row_number() OVER () AS place FROM ({query}) AS listed) AS hashed"
    )


def write_part(cursor: Any, folder: str, part: ArchivePart) -> dict[str, Any]:
    """Writes and checks one file. Returns the fields of its ``ArchivedFile``. Raises ``ArchiveDamaged`` and ``OSError``."""
    path = Path(folder) / part.name
    cursor.execute(part.query)
    _write(path, part.table, cursor.fetch_record_batch())
    cursor.execute(digest_sql(part.table, part.query))
    rows, digest = cursor.fetchone() or (0, "")
    if digest_of(part.table, read_batches(path, part.table)) != (rows, digest):
        raise ArchiveDamaged(
            f"{path} does not hold what the database has: the disk, or another process, changed it. Nothing was deleted."
        )
    return asdict(ArchivedFile(part.name, part.table, rows, path.stat().st_size, file_sha256(path), digest))


def _write(path: Path, table: str, batches: pa.RecordBatchReader) -> None:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    schema = TABLES[table].schema()
    with open_new(path) as file:
        with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
            for batch in batches:
                columns = [column.cast(kind.type) for column, kind in zip(batch.columns, schema, strict=True)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema), row_group_size=_ROWS_PER_GROUP)
        file.flush()
        os.fsync(file.fileno())


def count_rows(path: Path) -> int:
    """Returns the number of rows of a file, as its footer says. Raises ``ArchiveDamaged`` if the footer cannot be read."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with pq.ParquetFile(path) as file:
            return int(file.metadata.num_rows)
    except (OSError, pa.ArrowException) as error:
        raise ArchiveDamaged(f"{path} cannot be read: {error}. Take another copy of the archive.") from error


def read_batches(path: Path, table: str, rows: int = _ROWS_PER_GROUP) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file in order. Raises ``ArchiveDamaged`` if the file cannot be read."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if not file.schema_arrow.equals(TABLES[table].schema()):
                raise ArchiveDamaged(
                    f"{path} has other columns than a table {table!r} of an archive. Take another copy of the archive."
                )
            yield from file.iter_batches(rows)
    except (OSError, pa.ArrowException) as error:
        raise ArchiveDamaged(f"{path} cannot be read: {error}. Take another copy of the archive.") from error
