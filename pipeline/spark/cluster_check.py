"""Checks before a job that the executors of a cluster can do our work.

A cluster may lack a package, access to the database, or free cores. Without this check, Spark would report a missing
package as a stack trace in the middle of the job. Spark would not report missing cores at all.

Runs in Spark's driver without Django, and has tasks run in the executors.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipeline.errors import ClusterUnfit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["check_executors", "find_missing"]

#: Modules that tasks import. Each imports the packages that it needs.
TASK_MODULES = (
    "pipeline.source.data_source",
    "pipeline.frames.read_events",
    "pipeline.frames.stored",
    "pipeline.frames.work_out_rooms",
    "pipeline.loading.load_pack",
    "pipeline.importing.runners",
    "pipeline.archive.parts",
    "pipeline.maintenance.compress_executor",
    "pipeline.maintenance.resync_executor",
    "pipeline.export.executor",
    # These two are imported late: the first by pipeline.source.read_rows when it reads, the second by pipeline.source.write.
    "adbc_driver_postgresql.dbapi",
    "pgpq",
)
_CONNECT_SECONDS = 10
_MOST_HOSTS = 3
_MOST_ASKED = 64
_GROUP = "replsite check"


def find_missing(dsn: str) -> dict[str, str]:
    """Returns the missing requirements of this executor: name -> error. The result is empty if nothing is missing."""
    missing = {}
    for name in TASK_MODULES:
        try:
            import_module(name)
        except ImportError as error:
            missing[str(error.name or name)] = str(error)
    if dsn and "psycopg2" not in missing:
        import psycopg2  # noqa: PLC0415 - may be what is missing

        try:
            psycopg2.connect(dsn, connect_timeout=_CONNECT_SECONDS, application_name="replsite spark check").close()
        except psycopg2.OperationalError as error:
            missing["the database"] = " ".join(str(error).split())
    return missing


def check_executors(spark: SparkSession, dsn: str, seconds: float) -> None:
    """Runs a check in as many tasks as the cluster has cores, at most ``_MOST_ASKED``.

    Raises ``ClusterUnfit`` if requirements are missing on some hosts. The error names these hosts and requirements.
    Also raises ``ClusterUnfit`` if no executor took the tasks within ``seconds``. Then no worker has free cores and
    memory for this job.
    """
    answers = _ask(spark, dsn, seconds)
    unfit = {host: missing for host, missing in answers if missing}
    if unfit:
        reasons = "; ".join(
            f"{host}: {', '.join(missing.values())}" for host, missing in list(unfit.items())[:_MOST_HOSTS]
        )
        raise ClusterUnfit(
            f"{len(unfit)} of the hosts of {spark.sparkContext.master} cannot do this work: {reasons}. Install the packages of "
            f"requirements.txt for the Python of REPLSITE_SPARK_CONF there, and let them reach the database."
        )


def _ask(spark: SparkSession, dsn: str, seconds: float) -> list[tuple[str, dict[str, str]]]:
    """Runs the check in Spark tasks. Returns (host, missing requirements: name -> error) of each task.

    A separate thread waits for the Spark job, so that the caller can give up after ``seconds``.
    """
    context = spark.sparkContext
    question = _Question(spark, dsn)
    question.start()
    question.join(seconds)
    if question.is_alive():
        context.cancelJobGroup(_GROUP)
        question.join(seconds)
        raise ClusterUnfit(
            f"No executor of {context.master} took a task for {seconds:.0f} s: its workers have no cores or no memory left for "
            f"this job. Free some, or ask for less in REPLSITE_SPARK_CONF (spark.cores.max, spark.executor.memory)."
        )
    if question.failed:
        raise ClusterUnfit(f"The executors of {context.master} cannot run our code: {_gist(question.failed)}")
    return [(row["host"], json.loads(row["missing"])) for row in question.found]


class _Question(threading.Thread):
    """A thread that runs a Spark job with one task for each core. Each task calls ``find_missing``."""

    def __init__(self, spark: SparkSession, dsn: str) -> None:
        super().__init__(name="executor check", daemon=True)
        self._spark, self._dsn = spark, dsn
        self.found: list[Any] = []
        self.failed = ""

    def run(self) -> None:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - slow, and the executors do not need it
        from pyspark.errors import PySparkException  # noqa: PLC0415

        context = self._spark.sparkContext
        context.setJobGroup(_GROUP, "Can the executors do our work?")
        tasks = max(1, min(context.defaultParallelism, _MOST_ASKED))
        asked = self._spark.range(0, tasks, 1, tasks).mapInArrow(_answers(self._dsn), "host string, missing string")
        try:
            self.found = asked.collect()
        except (PySparkException, Py4JJavaError) as error:
            self.failed = str(error) or type(error).__name__


def _answers(dsn: str) -> Any:
    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        import socket  # noqa: PLC0415 - in the executor

        import pyarrow  # noqa: PLC0415

        for batch in batches:
            missing = [json.dumps(find_missing(dsn))] * batch.num_rows
            yield pyarrow.RecordBatch.from_pydict({"host": [socket.gethostname()] * batch.num_rows, "missing": missing})

    return each


def _gist(trace: str) -> str:
    """Returns the last meaningful line of a remote traceback."""
    lines = [line.strip() for line in trace.splitlines()]
    telling = [line for line in lines if line and not line.startswith(("at ", "File ", "^", "~", "Traceback"))]
    named = [line for line in telling if "Error" in line or "MISMATCH" in line]
    return (named or telling or ["Spark gave no reason"])[-1][:500]
