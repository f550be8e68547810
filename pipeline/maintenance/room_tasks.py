"""Divides work on many rooms among Spark tasks, and yields the answers of the tasks as they arrive.

Rooms are divided into packs of about the same size. Each pack is a Spark job of one task. As many packs run at a time
as there are cores. Packs with the largest rooms run first. The driver gets the answers of a pack when the pack ends. So
few answers are in memory at a time. A cancelled job ends between two packs.

Runs in Spark's driver, and needs Django.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pipeline.spark.arguments import master
from pipeline.spark.job_steps import job_group
from pipeline.spark.run_tasks import spark_errors
from streams.jobs.job_run import JobRun
from streams.runtime.batches import bounded_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MASTER", "SizedRoom", "are_many", "ask_packs", "ask_rooms", "pack"]

MASTER = master(
    "work on Spark, at this master (only when there is much to do, at the site's)",
    in_form="URL of a Spark master; none: the database alone",
)
_ROOMS_PER_TASK = 500
_MOST_TASKS = 64
_WAIT_SECONDS = 1.0
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class SizedRoom:
    """A room with its size, which is the number of the rows on which the duration of the work depends, such as events."""

    room_id: str
    size: int


def pack(rooms: Sequence[SizedRoom], most: int) -> Iterator[list[SizedRoom]]:
    """Returns packs of at most 500 rooms and of at most the size ``most``. A larger room is a pack of its own.

    The largest rooms come first. So no large room is handled alone at the end, while other cores are idle.
    """
    largest_first = sorted(rooms, key=lambda room: -room.size)
    return bounded_batches(largest_first, attrgetter("size"), most, _ROOMS_PER_TASK)


def are_many(rooms: Sequence[SizedRoom], in_process: int) -> bool:
    """Returns true if Spark is worth it: for several rooms whose sizes add up to more than ``in_process``."""
    return len(rooms) > 1 and sum(room.size for room in rooms) > in_process


def ask_rooms(
    run: JobRun,
    spark: SparkSession,
    rooms: Sequence[SizedRoom],
    most: int,
    work: Callable[[Sequence[str]], list[_Answer]],
) -> Iterator[tuple[int, list[_Answer]]]:
    """Calls ``work`` with the room IDs of each pack, in a Spark task. Yields (size of the pack, answers) for each ended pack.

    A pack of several rooms has at most the size ``most``. Raises ``SparkFailed`` and the errors of ``run.step``.
    """
    return ask_packs(spark, job_group(run), pack(rooms, most), work, run.step)


def ask_packs(
    spark: SparkSession,
    group: tuple[str, str],
    packs: Iterator[list[SizedRoom]],
    work: Callable[[Sequence[str]], list[_Answer]],
    step: Callable[[], object] = lambda: None,
) -> Iterator[tuple[int, list[_Answer]]]:
    """Does the same as ``ask_rooms`` without a job. ``group`` is the job group of the Spark jobs, and its description.

    ``step`` is called about once a second.
    """
    tasks = _Tasks(spark, group, work, packs)
    try:
        while tasks.submit():
            yield from tasks.ended()
            step()
    finally:
        tasks.close()


class _Tasks(Generic[_Answer]):
    """The packs of rooms that are submitted to Spark. Each pack is a Spark job of one task. A thread waits for each Spark job.

    ``group`` holds (job group, description) of these Spark jobs.
    """

    def __init__(
        self,
        spark: SparkSession,
        group: tuple[str, str],
        work: Callable[[Sequence[str]], list[_Answer]],
        packs: Iterator[list[SizedRoom]],
    ) -> None:
        self._spark, self._group, self._work, self._packs = spark, group, work, packs
        self._most = max(1, min(spark.sparkContext.defaultParallelism, _MOST_TASKS))
        self._pool = ThreadPoolExecutor(self._most, "rooms")
        self._waiting: dict[Future[list[_Answer]], int] = {}

    def submit(self) -> bool:
        """Submits packs, up to twice as many as can run at a time. Returns false if all packs have ended."""
        # For each pack that a task computes, another pack is queued in the pool. So no core is idle while the caller
        # handles answers.
        for packed in itertools.islice(self._packs, 2 * self._most - len(self._waiting)):
            ids = [room.room_id for room in packed]
            future = self._pool.submit(_ask, self._spark, self._group, self._work, ids)
            self._waiting[future] = sum(room.size for room in packed)
        return bool(self._waiting)

    def ended(self) -> Iterator[tuple[int, list[_Answer]]]:
        """Waits up to a second for a pack to end. Yields (size, answers) of each pack that has ended."""
        for future in wait(self._waiting, _WAIT_SECONDS, FIRST_COMPLETED).done:
            yield self._waiting.pop(future), future.result()

    def close(self) -> None:
        """Cancels the packs that have not ended, and waits for the threads."""
        for future in self._waiting:
            future.cancel()
        self._spark.sparkContext.cancelJobGroup(self._group[0])
        self._pool.shutdown()


def _ask(
    spark: SparkSession,
    group: tuple[str, str],
    work: Callable[[Sequence[str]], list[_Answer]],
    room_ids: Sequence[str],
) -> list[_Answer]:
    """Calls ``work`` with ``room_ids`` in one Spark task. Returns the answers of ``work``. Raises ``SparkFailed``.

    For each pack, this function is called in a separate thread.
    """
    context = spark.sparkContext
    context.setJobGroup(*group, interruptOnCancel=True)
    with spark_errors():
        tasks = context.parallelize([list(room_ids)], 1)
        answers: list[Any] = tasks.map(work).collect()
    return list(answers[0])
