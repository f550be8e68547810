"""Runs one function in many tasks of Spark, once for each task number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.errors import SparkFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["error_summary", "run_tasks", "spark_errors"]

_ERROR_NAMED = re.compile(r"[\w.]+(Error|Exception|Refused|Missing)\b|psycopg2\.errors\.\w+:")


def run_tasks(spark: SparkSession, tasks: int, work: Callable[[int], str]) -> list[str]:
    """Runs ``work(0)`` to ``work(tasks - 1)``, each call in a separate task. Returns the results in this order.

    Raises ``SparkFailed``.
    """
    if not tasks:
        return []

    def each(numbers: Iterable[int]) -> Iterable[str]:
        from streams.runtime.gc_pause import freeze_objects  # noqa: PLC0415 - in the executor

        for number in numbers:
            yield work(number)
        freeze_objects()

    with spark_errors():  # RDDs, since the first query of a data frame costs the JVM seconds
        return spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(each).collect()


@contextmanager
def spark_errors() -> Iterator[None]:
    """Converts errors of Spark in the block to ``SparkFailed``."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - the rest of this module needs no Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    # The text of these errors comes from the JVM, which may be gone when it is printed. So it is read now.
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(f"Spark could not finish: {error_summary(str(error))}") from None


def error_summary(text: str) -> str:
    """Returns the line of a remote traceback that names the error, followed by the last line that names a file."""
    lines = [line.strip() for line in text.splitlines()]
    python = [
        line
        for line in lines
        if line and not line.startswith(("at ", "...", "Driver stacktrace", "SQLSTATE", "^", "~"))
    ]
    named = [line for line in python if _ERROR_NAMED.match(line)]
    where = [line for line in python if line.startswith("File ")]
    return " ".join([*(named or python)[-1:], *where[-1:]])[:1000]
