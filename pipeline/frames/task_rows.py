"""Rows that Python tasks read as Arrow batches, without passing them through Spark's JVM.

``TaskRows`` holds the number of tasks, and a function that reads the rows of one task. ``mapped`` runs a function of
the caller on these rows, in the task that reads them. So only the results of the caller's function become rows of
Spark. To convert all batches to rows of Spark would cost more CPU time than to compute the rooms.

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

__all__ = ["BatchFunction", "InSnapshot", "TaskRows", "as_read", "mapped"]

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


def as_read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Returns the batches unchanged. If it is the function of ``mapped``, the result is a frame of the unchanged rows."""
    return batches


def mapped(
    rows: TaskRows | DataFrame, columns: Sequence[str], function: BatchFunction, schema: str | StructType
) -> DataFrame:
    """Calls ``function`` with batches of the rows, which have only ``columns``. Returns the function's results as a frame.

    Each task calls ``function`` at least once.
    """
    if isinstance(rows, TaskRows):
        return rows.mapped(columns, function, schema)
    return rows.select(*columns).mapInArrow(function, schema)
