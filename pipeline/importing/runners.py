"""Runs the tasks of an import: on Spark, or in this process for small sources. Runs in Spark's driver.

Both runners call the same functions on Arrow batches. They differ in how the events of a pack come together: by Spark's
shuffle, or in memory and a temporary file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from events.room.verification import KeyRing
from pipeline.errors import TaskFailed
from pipeline.frames.choose_events import KEYS_OF_COPIES, copies_elsewhere, in_order
from pipeline.frames.packs import Packs, count_rooms, large_rooms, pack_events, shuffled_pack
from pipeline.frames.parse_lines import PartScan, scan_part
from pipeline.frames.read_events import scan_parts
from pipeline.frames.room_events import Held
from pipeline.frames.schemas import EVENTS
from pipeline.frames.sources.parts import Part
from pipeline.frames.task_rows import TaskRows
from pipeline.frames.work_out_rooms import by_pack, packs_of
from pipeline.importing.import_pack import PackWork, import_pack
from pipeline.importing.read_parts import ReadWork, read_part_once
from pipeline.spark.run_tasks import spark_errors
from pipeline.spark.stages import FinishedTasks

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["InProcess", "OnSpark"]

_LOADED = "pack int"


class OnSpark:
    """Runs tasks on Spark. The sources are parsed once. The executors keep the events on their disks until the end."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def finished(self) -> Callable[[], int]:
        """Returns a function that returns how many tasks have finished since. It may be called from another thread."""
        return FinishedTasks(self._spark)

    def scan(self, parts: Sequence[Part], limit_bytes: int, keys: KeyRing | None) -> list[PartScan]:
        return scan_parts(self._spark, parts, limit_bytes, keys)

    def read(self, work: ReadWork, packs: Packs | None, events_per_pack: int) -> Packs:
        """Returns the packs. Reads all parts, unless the job has ``packs`` already: then ``load`` reads them."""
        # By broadcast: a closure would be sent with every task, and the versions of 10^5 rooms take megabytes. The
        # connection string stays in the closure, because Spark writes broadcast values to files.
        shared = self._spark.sparkContext.broadcast((work.reading, work.inputs))
        job, dsn = work.job, work.dsn

        def read_part(number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
            return (batch.select(list(columns)) for batch in read_part_once(ReadWork(job, dsn, *shared.value), number))

        with spark_errors():
            self._rows = TaskRows(self._spark, len(work.reading.parts), read_part).persist(EVENTS.arrow())
            return packs or packs_of(self._rows, events_per_pack)

    def load(self, work: PackWork, packs: Packs, done: Collection[int]) -> None:
        """Loads the packs that are not ``done``."""

        def load_them(parcels: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _load_parcels(work, parcels)

        with spark_errors():
            by_pack(self._rows, packs, done).mapInArrow(load_them, _LOADED).collect()
            self._rows.unpersist()


def _load_parcels(work: PackWork, parcels: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with shuffled_pack(parcels) as found:
        if found is not None:
            import_pack(work, *found)
    return iter(())


class InProcess:
    """Runs tasks in this process, one after the other. ``step`` is called after each task.

    The sources are parsed once. The events of all packs are held in memory, or in a temporary file without a name.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._finished = 0
        self._held = Held()

    def close(self) -> None:
        """Removes the temporary file."""
        self._held.close()

    def finished(self) -> Callable[[], int]:
        before = self._finished
        return lambda: self._finished - before

    def scan(self, parts: Sequence[Part], limit_bytes: int, keys: KeyRing | None) -> list[PartScan]:
        found = []
        for part in parts:
            with self._task():
                found.append(scan_part(part, limit_bytes, keys))
        return found

    def read(self, work: ReadWork, packs: Packs | None, events_per_pack: int) -> Packs:
        """Reads all parts. Returns the packs, which are ``packs`` if the job has them already."""
        counts: list[pa.RecordBatch] = []
        for number in range(len(work.reading.parts)):
            with self._task():
                for batch in read_part_once(work, number):
                    if batch.num_rows:
                        counts += count_rooms([batch])
                        self._held.add(batch)
        found = (row.values() for batch in large_rooms(counts, events_per_pack) for row in batch.to_pylist())
        return packs or Packs.of(found, events_per_pack)

    def load(self, work: PackWork, packs: Packs, done: Collection[int]) -> None:
        """Loads the packs that are not ``done``."""
        import pyarrow as pa  # noqa: PLC0415 - only where events are read

        if not self._held:
            return
        batches = self._held.batches()
        marks: list[pa.Table] = []
        if packs.names_ids:
            keys = pa.Table.from_batches([batch.select(list(KEYS_OF_COPIES)) for batch in batches])
            marks.append(copies_elsewhere(keys))
        for number, rows in _by_pack(batches, packs):
            if number not in done:
                with self._task(), pack_events(in_order(batches, rows), marks) as events:
                    if events is not None:
                        import_pack(work, number, events)

    @contextmanager
    def _task(self) -> Iterator[None]:
        """Counts a task, and converts its errors to ``TaskFailed``."""
        try:
            yield
        except Exception as error:
            raise TaskFailed(f"A task failed: {type(error).__module__}.{type(error).__name__}: {error}") from error
        self._finished += 1
        self._step()


def _by_pack(batches: Sequence[pa.RecordBatch], packs: Packs) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Yields (number of a pack, row numbers of its events) in the order of the numbers."""
    import numpy as np  # noqa: PLC0415 - only where events are read

    of_pack = np.concatenate([packs.numbers(batch.column("room_id")) for batch in batches])
    order = np.argsort(of_pack, kind="stable")
    numbers = of_pack[order]
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, end in pairwise(starts):
        yield int(numbers[start]), order[start:end]
