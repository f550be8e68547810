"""Exports tables to Parquet through Spark, all from one snapshot. Runs in Spark's driver, and needs Django.

    FOLDER/events/room_bucket=3/day=2026-01-31/part-….parquet      rows by room and position
    FOLDER/export.json                                             a list of the folder's contents, moved there last

All rows of a room are in one bucket (``export.tables.room_bucket``). So the number of folders does not grow with the
number of rooms. The statistics of a Parquet file tell which rooms the file has.

Each table is written to a new folder beside the folder of the last export. The rows in the new folder are counted and
compared with the database. The new folders replace the old ones only when all tables are written. So an export that is
interrupted or fills the disk leaves the last export as it was.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.disk_full import disk_full
from pipeline.errors import DiskFull, ExportDiffers, SparkFailed
from pipeline.export.executor import Exporting, ExportPiece, arrow_schema, read_export
from pipeline.export.folder import MANIFEST, OLD, PARTIAL, export_lock
from pipeline.export.tables import TABLES, ExportedTable, buckets_for
from pipeline.private_files import make_folder, open_new, remove_folder
from pipeline.source.shared_snapshot import SHARE_SNAPSHOT
from pipeline.spark.job_steps import spark_steps
from pipeline.spark.run_tasks import error_summary
from pipeline.spark.site_session import site_session
from streams.core.queries import STORED_POSITIONS
from streams.db import driver
from streams.jobs.errors import UnusableArguments
from streams.jobs.job_run import JobRun

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["ExportRequest", "TableFigures", "export_tables"]

_FORMAT = 1
_DAY_MS = 86_400_000
_ROWS_PER_PIECE = 50_000
_MOST_PIECES = 10_000
_ROWS_PER_TASK = 200_000
_MOST_TASKS = 2_000
_ROWS_PER_FILE = 1_000_000
_IO_ERROR = re.compile(r"(?:IOException|FSError): ([^\n]+)")


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The arguments of an export. ``since`` and ``until`` limit the days, counted from 1970; ``until`` is exclusive."""

    folder: Path
    tables: Sequence[str] = tuple(TABLES)
    rooms: Sequence[str] | None = None
    since: int | None = None
    until: int | None = None
    buckets: int | None = None
    overwrite: bool = False
    master: str | None = None


@dataclass(frozen=True, slots=True)
class TableFigures:
    """The size of an exported table: rows, files, bytes, and the numbers of its room buckets and days."""

    rows: int
    files: int
    bytes: int
    room_buckets: int
    days: int


def export_tables(run: JobRun, request: ExportRequest) -> dict[str, Any]:
    """Exports the tables. Returns the contents of ``export.json``.

    Raises ``UnusableArguments`` for a folder that cannot be used, ``ExportRunning``, ``ExportDiffers`` and ``DiskFull``.
    """
    _check_folder(request)
    try:
        with disk_full(), _snapshot(request.folder, run.using) as (cursor, name):
            return _Export(run, request, cursor, name).write()
    except BaseException as error:
        for name in (*request.tables, MANIFEST):
            with suppress(OSError):
                _remove(_partial(request.folder, name))
        if isinstance(error, DiskFull):
            raise DiskFull(
                f"The disk of {request.folder}, or that of Spark's scratch files, is full: what was in the folder is as it was. "
                "Free space, then export again."
            ) from error
        raise


def _check_folder(request: ExportRequest) -> None:
    folder = request.folder
    try:
        make_folder(folder)
    except OSError as error:
        raise UnusableArguments(f"Cannot write to {folder}: {error.strerror}.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UnusableArguments(f"Cannot write to {folder}: permission denied.")
    there = [table for table in request.tables if (folder / table).exists()]
    if there and not request.overwrite:
        raise UnusableArguments(
            f"{folder} has {', '.join(there)} already. Name another folder, or let it be replaced: --overwrite."
        )


def _partial(folder: Path, table: str) -> Path:
    return folder / f"{table}{PARTIAL}"


@contextmanager
def _snapshot(folder: Path, using: str) -> Iterator[tuple[Any, str]]:
    """Yields (cursor in a snapshot of the database, name under which other sessions can open the snapshot).

    A session lock keeps other exports out of the folder while the block runs.
    """
    with (
        closing(driver.direct_connection(using, application_name="replsite export")) as connection,
        connection.cursor() as cursor,
        export_lock(cursor, folder),
    ):
        cursor.execute(SHARE_SNAPSHOT)
        driver.go_to_last_result(cursor)
        yield cursor, cursor.fetchone()[0]


class _Export:
    def __init__(self, run: JobRun, request: ExportRequest, cursor: Any, snapshot: str) -> None:
        self._run, self._request = run, request
        self._cursor, self._snapshot = cursor, snapshot
        self._made_at_ms = time.time_ns() // 1_000_000

    def write(self) -> dict[str, Any]:
        """Writes all tables beside the old ones, then replaces the old ones. Returns the manifest, which is moved last."""
        request = self._request
        names = (*request.tables, MANIFEST)
        _settle(request.folder)
        for name in names:
            _remove(_partial(request.folder, name))
        with site_session("export", request.master) as spark:
            figures = {table: self._table(spark, TABLES[table]) for table in request.tables}
        manifest = self._manifest(figures)
        with open_new(_partial(request.folder, MANIFEST)) as file:
            file.write(json.dumps(manifest, indent=1).encode())
        _put_in_place(request.folder, names)
        return manifest

    def _manifest(self, figures: Mapping[str, TableFigures]) -> dict[str, Any]:
        self._cursor.execute(STORED_POSITIONS, {"streams": ["events"]})
        positions = {writer: position for _, writer, position, *_ in self._cursor.fetchall()}
        request = self._request
        return {
            "format": _FORMAT,
            "made_at_ms": self._made_at_ms,
            "events_positions": positions,
            "rooms": None if request.rooms is None else list(request.rooms),
            "since": request.since,
            "until": request.until,
            "tables": {name: asdict(found) for name, found in figures.items()},
        }

    # --- one table ----------------------------------------------------------------------------------------------

    def _table(self, spark: SparkSession, table: ExportedTable) -> TableFigures:
        request, run = self._request, self._run
        where, values = table.conditions(request.rooms, request.since, request.until)
        day = "NULL::integer" if table.day is None else table.day_sql(self._made_at_ms // _DAY_MS)
        self._cursor.execute(
            f"SELECT count(*), count(DISTINCT {table.room}), count(DISTINCT coalesce({day}, -1)), "
            f"min({table.key}), max({table.key}) FROM {table.source} WHERE {where}",
            values or None,
        )
        rows, rooms, days, low, high = self._cursor.fetchone()
        columns, query = _selection(table, day)
        pieces = [
            ExportPiece(
                driver.with_values(
                    self._cursor, f"{query} WHERE {where} AND {table.key} BETWEEN {first} AND {last}", values or None
                )
            )
            for first, last in _ranges(low, high, rows)
        ]
        work = Exporting(driver.dsn(run.using), self._snapshot, columns)
        target = _Target(
            _partial(request.folder, table.name),
            request.buckets or buckets_for(rooms=rooms, rows=rows, days=days),
            rows,
            table,
        )
        done = spark.sparkContext.accumulator(0)
        with run.watch(table.name, rows, "rows", lambda: min(done.value, rows)), spark_steps(run, spark):
            _write(spark, work, pieces, target, done)
        found, files, size = _count(target.folder)
        if found != rows:
            raise ExportDiffers(
                f"{table.name}: {found:,} rows were written and the database has {rows:,}; the folder is as it was. "
                "Export again."
            )
        return TableFigures(found, files, size, target.buckets, 0 if table.day is None else days)


def _selection(table: ExportedTable, day: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Returns (columns, query) for a table. The columns are (name, kind), and the query selects them."""
    columns = [(name, kind) for name, kind, _ in table.columns]
    selected = [f"{sql} AS {name}" for name, _, sql in table.columns]
    if table.day is not None:
        columns.append(("day", "date"))
        selected.append(f"{day} AS day")
    return tuple(columns), f"SELECT {', '.join(selected)} FROM {table.source}"


def _ranges(low: int | None, high: int | None, rows: int) -> Iterator[tuple[int, int]]:
    """Divides the integer keys from ``low`` to ``high`` into ranges of equal width. Yields (first key, last key) of each range.

    If the table has no rows, ``low`` and ``high`` are None, and no range is yielded.
    """
    if low is None or high is None:
        return
    pieces = max(1, min(-(-rows // _ROWS_PER_PIECE), _MOST_PIECES))
    width = -(-(high - low + 1) // pieces)
    for first in range(low, high + 1, width):
        yield first, min(first + width - 1, high)


@dataclass(frozen=True, slots=True)
class _Target:
    """The folder to which a table is written, with the numbers of its room buckets and of the rows in the database."""

    folder: Path
    buckets: int
    rows: int
    table: ExportedTable


def _write(spark: SparkSession, work: Exporting, pieces: Sequence[ExportPiece], target: _Target, done: Any) -> None:
    """Reads all pieces with Spark, groups the rows by bucket and day, and writes them sorted by ``order`` of the table."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - the rest of this module needs no Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in read_export(work, pieces[number]):
                    done.add(rows.num_rows)
                    yield rows

    parts = ["room_bucket", *(["day"] if target.table.day is not None else [])]
    tasks = max(1, min(-(-target.rows // _ROWS_PER_TASK), _MOST_TASKS))
    try:
        schema = from_arrow_schema(arrow_schema(work.columns))
        found = spark.range(0, len(pieces), 1, max(len(pieces), 1)).mapInArrow(read, schema)
        found = found.withColumn("room_bucket", f.expr(f"CAST(pmod(crc32(room_id), {target.buckets}) AS int)"))
        (
            found.repartition(tasks, *parts)
            .sortWithinPartitions(*parts, *target.table.order)
            .write.option("maxRecordsPerFile", _ROWS_PER_FILE)
            .option("compression", "zstd")
            .partitionBy(*parts)
            .parquet(target.folder.as_uri())
        )
    # The text of these errors comes from the JVM, which may be gone when it is printed. So it is read now.
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(f"Spark could not write {target.table.name}: {_why(str(error))}") from None


def _why(text: str) -> str:
    """Extracts the reason of a failure from the text of a Spark error.

    If a file could not be written, the reason is the operating system's message. Otherwise the reason is the error that
    this package's code raised.
    """
    found = _IO_ERROR.findall(text)
    return found[-1][:1000] if found else error_summary(text)


def _count(folder: Path) -> tuple[int, int, int]:
    """Returns the numbers of rows, files and bytes of a written table, as read from its files."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - only where something is exported

    rows = size = files = 0
    for path in folder.rglob("*.parquet"):
        rows += pq.read_metadata(path).num_rows
        size += path.stat().st_size
        files += 1
    return rows, files, size


def _put_in_place(folder: Path, names: Sequence[str]) -> None:
    """Replaces the old tables ``names`` in ``folder`` by the new ones. The manifest is the last of them.

    Folders are only renamed, which takes no time and can be undone.
    """
    # The manifest is the last name. It is the first to be moved away and the last to be put in place. So a folder with a
    # manifest always holds the tables that it describes, even if the process is killed in between (see ``_settle``).
    try:
        for name in reversed(names):
            if (folder / name).exists():
                (folder / name).rename(_old(folder, name))
        for name in names:
            _partial(folder, name).rename(folder / name)
    except BaseException:
        for name in names:
            if not _partial(folder, name).exists():
                _remove(folder / name)
        _settle(folder)
        raise
    _settle(folder)


def _settle(folder: Path) -> None:
    """Completes or undoes a replacement of tables that was interrupted.

    If the new manifest is in place, the old tables are deleted. Otherwise the old tables are moved back.
    """
    done = (folder / MANIFEST).exists()
    for name in (*TABLES, MANIFEST):
        old = _old(folder, name)
        if done:
            _remove(old)
        elif old.exists():
            _remove(folder / name)
            old.rename(folder / name)


def _old(folder: Path, name: str) -> Path:
    return folder / f"{name}{OLD}"


def _remove(path: Path) -> None:
    """Removes a folder or file if it exists."""
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)
