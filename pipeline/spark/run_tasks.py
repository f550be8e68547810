"""Numbered tasks on Spark: one function of a number, run once for each, the answers in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pipeline.errors import SparkFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["finished_tasks", "last_words", "run_tasks"]

_ERROR_NAMED = re.compile(r"[\w.]+(Error|Exception|Refused|Missing)\b|psycopg2\.errors\.\w+:")


def run_tasks(spark: SparkSession, tasks: int, work: Callable[[int], str]) -> list[str]:
    """``work(0)`` to ``work(tasks - 1)``, each in a Spark task of its own; the answers in that order."""
    if not tasks:
        return []

    def each(numbers: Iterable[int]) -> Iterable[str]:
        from streams.runtime.gc_pause import keep_for_good  # noqa: PLC0415 - in the executor

        for number in numbers:
            yield work(number)
        keep_for_good()

    from py4j.protocol import Py4JError  # noqa: PLC0415 - the rest of this module needs no Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:  # of RDDs, since a data frame's first query would cost the JVM seconds
        return spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(each).collect()
    except (PySparkException, Py4JError) as error:  # its text needs the JVM, which may be gone when somebody prints it
        raise SparkFailed(f"Spark could not finish: {last_words(str(error))}") from None


def finished_tasks(spark: SparkSession) -> int:
    """How many tasks of what Spark works on now are done; may be asked from another thread."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def last_words(text: str) -> str:
    """Of a remote traceback the line that says what happened, and where in our rooms."""
    lines = [line.strip() for line in text.splitlines()]
    python = [
        line
        for line in lines
        if line and not line.startswith(("at ", "...", "Driver stacktrace", "SQLSTATE", "^", "~"))
    ]
    named = [line for line in python if _ERROR_NAMED.match(line)]
    where = [line for line in python if line.startswith("File ")]
    return " ".join([*(named or python)[-1:], *where[-1:]])[:1000]
