"""Parses the lines and rows of an import's sources into staging tables. Runs in Spark's executors. Needs no Django.

Each part of a source is staged in one transaction, with its own row in the ledger. A line that is no valid event goes
to the quarantine with a reason. No content of a source makes the job fail. The job fails only if a source cannot be
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline.frames.parse_lines import LineRules
from pipeline.frames.read_events import Reading, part_batches
from pipeline.frames.sources.parts import Part
from pipeline.importing.staging_tables import (
    BROKEN,
    EVENT_COLUMNS,
    STAGED_EVENTS,
    STEPS,
    VERSIONS,
    staging_connection,
    table_name,
)
from pipeline.loading.copy_rows import copy_batches
from pipeline.spark.run_tasks import InProcess, run_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["LINES_PER_PART", "LineWork", "StoredVersions", "sequence_number", "stage_part", "stage_parts"]

LINES_PER_PART = 2**32


@dataclass(frozen=True, slots=True)
class LineWork:
    """The parameters for staging parts, the same for all tasks of a job. Each task fills in the room versions of ``rules``."""

    job: int
    dsn: str
    rules: LineRules


class StoredVersions(Mapping[str, str]):
    """A lazy map from room IDs to room versions.

    If the site has the room, the version is that of the site's room. Otherwise it is the version that the input
    announces. A room is looked up in the database when the first of its events without a version is parsed. Length and
    iteration cover only rooms that were looked up.
    """

    def __init__(self, cursor: Any, job: int) -> None:
        self._cursor = cursor
        self._sql = (
            "SELECT coalesce((SELECT room_version FROM events_room WHERE room_id = %(room)s), "
            f"(SELECT room_version FROM {table_name(job, VERSIONS.name)} WHERE room_id = %(room)s))"
        )
        self._asked: dict[str, str | None] = {}

    def __getitem__(self, room_id: str) -> str:
        if room_id not in self._asked and "\0" not in room_id:
            self._cursor.execute(self._sql, {"room": room_id})
            self._asked[room_id] = self._cursor.fetchone()[0]
        found = self._asked.get(room_id)
        if found is None:
            raise KeyError(room_id)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(room_id for room_id, version in self._asked.items() if version is not None)

    def __len__(self) -> int:
        return sum(version is not None for version in self._asked.values())

    def __bool__(self) -> bool:
        return True  # len() is 0 until the first lookup, but the map is not empty


def sequence_number(part: int, line: int) -> int:
    """Returns the place of a line in the whole input. Places ascend by part, and within a part by line number."""
    return part * LINES_PER_PART + line


def stage_parts(spark: SparkSession | InProcess, work: LineWork, parts: Sequence[Part]) -> None:
    """Parses all parts into the staging tables, in a task for each part. To be called in Spark's driver."""

    def stage(number: int) -> str:
        return str(stage_part(work, number, parts[number]))

    run_tasks(spark, len(parts), stage)


def stage_part(work: LineWork, number: int, part: Part) -> int:
    """Parses a part into the staging tables. Returns the number of lines read, or 0 if the part was staged before."""
    with staging_connection(work.dsn) as connection, connection.cursor() as cursor:
        # Attempts A and B of one task: B's insert waits for A's transaction. If A commits, B finds the row and does nothing.
        # If A fails, its rows and its ledger row are rolled back together, and B stages the part.
        cursor.execute(
            f"INSERT INTO {table_name(work.job, STEPS.name)} (step, lines) VALUES (%s, 0) ON CONFLICT DO NOTHING",
            [f"part {number}"],
        )
        if not cursor.rowcount:
            return 0
        read = 0
        rules = replace(work.rules, versions=StoredVersions(cursor, work.job))
        for batch in part_batches(Reading([part], [sequence_number(number, 0)], rules), 0):
            events = batch.column("reason").null_count  # they come before the broken lines
            _copy(cursor, table_name(work.job, STAGED_EVENTS.name), batch.slice(0, events), EVENT_COLUMNS)
            _copy(cursor, table_name(work.job, BROKEN.name), batch.slice(events), ("reason", "detail", "head"))
            read += batch.num_rows
        cursor.execute(
            f"UPDATE {table_name(work.job, STEPS.name)} SET lines = %s WHERE step = %s", [read, f"part {number}"]
        )
    return read


def _copy(cursor: Any, table: str, batch: pa.RecordBatch, columns: tuple[str, ...]) -> None:
    import pyarrow as pa  # noqa: PLC0415 - executors only

    if batch.num_rows:
        arrays = {"seq": batch.column("line")} | {name: batch.column(name) for name in columns}
        copy_batches(cursor, table, [pa.RecordBatch.from_pydict(arrays)])
