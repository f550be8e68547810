"""Connects a job with the Spark jobs that do its work: how they are named, cancelled and counted.

On Spark's page, the Spark jobs of a block have the names of the job's stages. When the job is to end, they are cancelled.
The figures of their Spark stages are stored in the job's summary. Runs in Spark's driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pipeline.spark.cancellation import cancelled_steps
from pipeline.spark.stages import StageFigures, StagesSince, added_up
from streams.jobs.job_run import JobRun
from streams.jobs.view import MOST_FIGURES, figure_text, is_number
from streams.runtime.amounts import byte_size, counted
from streams.runtime.logs import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SPARK", "job_group", "spark_steps", "spark_words"]

log = get_logger(__name__)
SPARK = "spark"
"""The key of a summary under which the figures of Spark's stages are stored."""
_DESCRIPTION = "spark.job.description"


def job_group(run: JobRun) -> tuple[str, str]:
    """Returns the job group of a job's Spark jobs, and the description that Spark's page shows during the current stage."""
    group = f"replsite job {run.id}"
    return group, f"{group}, {run.kind}" + (f": {run.stage_name}" if run.stage_name else "")


@contextmanager
def spark_steps(run: JobRun, spark: SparkSession) -> Iterator[None]:
    """Calls ``run.step`` at intervals in another thread while the block waits for Spark.

    If ``step`` raises an error, the block's Spark tasks are cancelled and the block ends with that error. Only Spark jobs
    that the block's own thread starts are cancelled.
    """

    def describe() -> None:
        with suppress(Exception):  # a name: the JVM may be gone, and then the work itself says so
            spark.sparkContext.setLocalProperty(_DESCRIPTION, job_group(run)[1])

    if (page := spark.sparkContext.uiWebUrl) is not None and SPARK not in run.also:
        run.say(f"Spark's page: {page}")
    run.also.setdefault(SPARK, [])
    group, description = job_group(run)
    stages, before, run.stage_changed = StagesSince(spark, group), run.stage_changed, describe
    try:
        with cancelled_steps(run.step, spark, group, description):
            yield
        _add_figures(run, stages, prefix=f"{group}, {run.kind}: ")
    finally:
        run.stage_changed = before


def _add_figures(run: JobRun, stages: StagesSince, prefix: str) -> None:
    try:
        found = [replace(stage, name=stage.name.removeprefix(prefix)) for stage in stages.figures()]
    except Exception as error:  # noqa: BLE001 - the work is done; another version of Spark may not have these figures
        log.warning("job.no_spark_figures", job=run.id, error=str(error)[:200])
        return
    before = [StageFigures(**stage) for stage in run.also[SPARK]]
    run.also[SPARK] = [asdict(stage) for stage in added_up([*before, *found])]


def spark_words(summary: Any) -> list[str]:
    """Returns a sentence for each Spark stage in the summary of a job.

    ``summary`` may be any JSON value, because another service may have written the job's row.
    """
    stages = summary.get(SPARK) if isinstance(summary, Mapping) else None
    found = [stage for stage in stages if isinstance(stage, Mapping)] if isinstance(stages, list) else []
    return [_stage_words(stage) for stage in found[:MOST_FIGURES]]


def _stage_words(stage: Mapping[str, Any]) -> str:
    def number(name: str) -> int:
        value = stage.get(name)
        return int(value) if value is not None and is_number(value) else 0

    tasks, failed, skew = number("tasks"), number("failed"), stage.get("skew")
    parts = [counted(tasks, "task")]
    parts += [f"{failed:,} failed and were repeated"] if failed else []
    parts += [f"{number('records'):,} records read"] if number("records") else []
    parts += [f"{byte_size(number('shuffled_bytes'))} shuffled"] if number("shuffled_bytes") else []
    parts += [f"{byte_size(number('spilled_bytes'))} spilled to disk"] if number("spilled_bytes") else []
    parts += [f"the longest task took {skew:,} times the median"] if is_number(skew) else []
    return f"{figure_text(stage.get('name'))}: {', '.join(parts)}"
