"""Rows that Python tasks read as Arrow batches, without converting them to rows of Spark.

``TaskRows`` holds the number of tasks, and a function that reads the rows of one task. ``mapped`` runs a function of
the caller on these rows, in the task that reads them. So only the results of the caller's function become rows of
Spark. To convert all batches to rows of Spark would cost more CPU time than to compute the rooms. ``persist`` has Spark
keep the batches, each as one binary value, so that the rows are read once.

Runs in Spark's driver and executors, without Django.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["BatchFunction", "InSnapshot", "PersistedRows", "TaskRows", "as_read", "mapped"]

BatchFunction: TypeAlias = "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]"


class InSnapshot:
    """The base class of frames that may be used until ``close``, which ends their snapshot, or the end of a ``with`` block."""

    __slots__ = ()
    _open: ExitStack

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Rows that several tasks read. ``read(number, columns)`` yields the rows of task ``number``, with only ``columns``."""

    spark: SparkSession
    tasks: int
    read: Callable[[int, Sequence[str]], Iterator[pa.RecordBatch]]

    def mapped(self, columns: Sequence[str], function: BatchFunction, schema: str | StructType) -> DataFrame:
        """Calls ``function`` with the rows of each task. Returns the results as a frame with one partition for each task."""
        read = self.read

        def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for (number,) in zip(batch.column("id").to_pylist(), strict=True):
                    yield from function(read(number, columns))

        return self.spark.range(0, self.tasks, 1, max(self.tasks, 1)).mapInArrow(work, schema)

    def persist(self, schema: pa.Schema) -> PersistedRows:
        """Tells Spark to keep the rows on the executors' disks once they are read. ``schema`` has their columns.

        If an executor is lost, its rows are read again.
        """
        from pyspark import StorageLevel  # noqa: PLC0415 - drivers only

        packed = self.mapped(schema.names, _packed, "content binary")
        return PersistedRows(packed.persist(StorageLevel.DISK_ONLY), schema)


@dataclass(frozen=True, slots=True)
class PersistedRows:
    """Rows that Spark keeps. Each row of ``packed`` is a batch of them: an Arrow record batch without its schema."""

    packed: DataFrame
    schema: pa.Schema

    def mapped(self, columns: Sequence[str], function: BatchFunction, schema: str | StructType) -> DataFrame:
        """Calls ``function`` with the rows of each task, as ``TaskRows.mapped`` does."""
        kept = self.schema

        def work(packed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return function(batch.select(list(columns)) for batch in _unpacked(packed, kept))

        return self.packed.mapInArrow(work, schema)

    def unpersist(self) -> None:
        """Frees the disk space."""
        self.packed.unpersist()


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - executors only

    for batch in batches:
        if batch.num_rows:
            yield pa.RecordBatch.from_pydict({"content": pa.array([batch.serialize().to_pybytes()], pa.binary())})


def _unpacked(packed: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - executors only

    for some in packed:
        for content in some.column("content"):
            yield pa.ipc.read_record_batch(content.as_buffer(), schema)


def as_read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Returns the batches unchanged. If it is the function of ``mapped``, the result is a frame of the unchanged rows."""
    return batches


def mapped(
    rows: TaskRows | PersistedRows | DataFrame,
    columns: Sequence[str],
    function: BatchFunction,
    schema: str | StructType,
) -> DataFrame:
    """Calls ``function`` with batches of the rows, which have only ``columns``. Returns the function's results as a frame.

    Each task calls ``function`` at least once.
    """
    if isinstance(rows, (TaskRows, PersistedRows)):
        return rows.mapped(columns, function, schema)
    return rows.select(*columns).mapInArrow(function, schema)
