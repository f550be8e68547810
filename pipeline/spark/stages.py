"""Reads the status of Spark's stages: finished tasks, and figures such as the bytes shuffled.

Stages belong to Spark jobs, and Spark jobs to a job group. A job group may run several Spark jobs, one after the other.
So stages of Spark jobs that have ended are included.

Runs in Spark's driver, without Django.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FinishedTasks", "StageFigures", "StagesSince", "added_up"]

_GROUP = "spark.jobGroup.id"
_EVENTS_MS = 5_000
"""The milliseconds that Spark may take to count the last tasks of a stage that has ended."""


class StagesSince:
    """The stages of a job group's Spark jobs. Spark jobs that began before this object was made are ignored.

    If ``group`` is None, the job group of the calling thread is used.
    """

    def __init__(self, spark: SparkSession, group: str | None = None) -> None:
        self._context = spark.sparkContext
        self._group = group or self._context.getLocalProperty(_GROUP)
        self._before = set(self._jobs())

    def numbers(self) -> list[int]:
        """Returns the numbers of the stages that Spark still knows, in the order in which they were planned."""
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in self._jobs() if job not in self._before]
        return sorted({stage for job in jobs if job is not None for stage in job.stageIds})

    def _jobs(self) -> list[int]:
        return list(self._context.statusTracker().getJobIdsForGroup(self._group))

    def figures(self) -> list[StageFigures]:
        """Returns the figures of the stages that ran. Figures of stages with the same description are added up.

        Raises an error of Py4J if this version of Spark has no such figures, or if the JVM is gone.
        """
        scala = self._context._jsc.sc()
        # A stage has ended before its last tasks are counted, by another thread of the JVM.
        scala.listenerBus().waitUntilEmpty(_EVENTS_MS)
        return added_up(_ran(self._context._gateway, scala.statusStore(), self.numbers()))


class FinishedTasks(StagesSince):
    """A callable that returns the number of finished tasks in a job group's stages. May be called from another thread.

    The number never falls, even if a stage ends, or if Spark repeats or forgets a stage.
    """

    def __init__(self, spark: SparkSession, group: str | None = None) -> None:
        super().__init__(spark, group)
        self._finished: dict[int, int] = {}

    def __call__(self) -> int:
        tracker = self._context.statusTracker()
        for number in self.numbers():
            stage = tracker.getStageInfo(number)
            if stage is not None:
                self._finished[number] = max(self._finished.get(number, 0), stage.numCompletedTasks)
        return sum(self._finished.values())


@dataclass(frozen=True, slots=True)
class StageFigures:
    """The figures of one stage of Spark, or the sums over several stages.

    ``records`` is the number of records read, from a source or from an earlier stage. A parcel of events is one record.

    ``skew`` is the run time of the longest task of a stage, divided by the run time of its median task. For several
    stages, ``skew`` is the highest value of a stage. It is None if no stage had two tasks.
    """

    name: str
    stages: int
    tasks: int
    failed: int
    records: int
    shuffled_bytes: int
    spilled_bytes: int
    skew: float | None


def added_up(figures: Iterable[StageFigures]) -> list[StageFigures]:
    """Adds up figures with the same name. Returns the sums in the order in which the names first occur."""
    sums: dict[str, StageFigures] = {}
    for found in figures:
        stage, old = found, sums.get(found.name)
        if old is not None:
            counts = ("stages", "tasks", "failed", "records", "shuffled_bytes", "spilled_bytes")
            skews = [skew for skew in (old.skew, stage.skew) if skew is not None]
            stage = replace(
                old,
                skew=max(skews, default=None),
                **{name: getattr(old, name) + getattr(found, name) for name in counts},
            )
        sums[stage.name] = stage
    return list(sums.values())


def _ran(gateway: Any, store: Any, numbers: Iterable[int]) -> Iterator[StageFigures]:
    for number in numbers:
        stage = store.lastStageAttempt(number)
        if stage.status().toString() != "COMPLETE":  # skipped, since an earlier job has its results
            continue
        described = stage.description()
        tasks = stage.numCompleteTasks()
        yield StageFigures(
            name=described.get() if described.isDefined() else stage.name(),
            stages=1,
            tasks=tasks,
            failed=stage.numFailedTasks(),
            records=stage.inputRecords() + stage.shuffleReadRecords(),
            shuffled_bytes=stage.shuffleWriteBytes(),
            spilled_bytes=stage.diskBytesSpilled(),
            skew=_skew(gateway, store, stage) if tasks > 1 else None,
        )


def _skew(gateway: Any, store: Any, stage: Any) -> float | None:
    wanted = gateway.new_array(gateway.jvm.double, 2)
    wanted[0], wanted[1] = 0.5, 1.0
    found = store.taskSummary(stage.stageId(), stage.attemptId(), wanted)
    if not found.isDefined():
        return None
    times = found.get().executorRunTime()
    median, longest = times.apply(0), times.apply(1)
    return round(longest / median, 1) if median else None
