"""Rows per second out of PostgreSQL through the Spark source, milliseconds per micro-batch of 100,000, facts written a second.

The facts are made by PostgreSQL itself, as those of a writer that has left. Everything goes to Spark's sink ``noop``, which
takes every row and keeps none; so what is measured is PostgreSQL, the Python workers and the way into the JVM. Beside it stands
what one process gets out of PostgreSQL by the same statement without Spark. About two minutes.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.source.data_source import register
from pipeline.source.offsets import pieces, stretches
from pipeline.source.positions import known_positions
from pipeline.source.read_rows import ReadParameters, read_piece
from pipeline.source.stream_schemas import declaration_of
from pipeline.spark.session import spark_session
from script.benchmarks.catchup import make_past
from script.benchmarks.cpu_seconds import CpuSeconds
from script.benchmarks.report import Report
from streams.db.driver import direct_connection, dsn

FACTS = int(os.environ.get("REPLSITE_BENCH_FACTS") or 1_000_000)
WRITTEN = 200_000
ROUNDS = 3
WARMING = 2
LEAST_PER_SECOND = 500_000
MOST_MILLISECONDS = 1000.0
_COLUMNS = ("fact_table", "token", "writer", "received_at_ms", "cache_name", "keys", "invalidation_ts")


def alone() -> None:
    """Read everything in this process, as one piece."""
    with direct_connection("default", application_name="bench") as direct, direct.cursor() as cursor:
        target = known_positions(cursor, declaration_of("caches")).target(linear=False)
    reading = ReadParameters(dsn(), "caches", _COLUMNS)
    for piece in pieces(stretches({}, target), []):
        for _ in read_piece(reading, piece):
            pass


def batch(spark: Any) -> None:
    """Read everything as one batch."""
    _source(spark.read).load().write.format("noop").mode("overwrite").save()


def micro_batches(spark: Any, rows: int) -> list[float]:
    """Milliseconds of each micro-batch of so many rows, all of them."""
    facts = _source(spark.readStream).option("maxRows", rows).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        sink = facts.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
        return [one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"] >= rows]


def write(spark: Any) -> None:
    """Append facts."""
    facts = spark.range(WRITTEN).selectExpr(
        "'bench' AS cache_name", "array(string(id)) AS keys", "id AS invalidation_ts"
    )
    facts.write.format("replsite").options(dsn=dsn(), stream="caches").mode("append").save()


def _source(reader: Any) -> Any:
    return reader.format("replsite").options(dsn=dsn(), stream="caches")


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _rate(report: Report, what: str, work: Callable[[], object], facts: int, limit: int | None = None) -> None:
    for _ in range(WARMING):  # JVM, workers and the table's pages
        work()
    with CpuSeconds() as cpu:
        rates = [facts / timed(work) for _ in range(ROUNDS)]
    rate = statistics.median(rates)
    well = None if limit is None else rate >= limit
    spent = cpu.seconds / ROUNDS / facts * 1e6
    report.add(what=what, rows_per_second=rate, limit=limit, well=well, cpu_per_million=spent)


def main() -> None:
    """Measure."""
    make_past(FACTS)
    report = Report("source", f"the Spark source, {FACTS} facts")
    _rate(report, "without Spark, one process", alone, FACTS)
    with tempfile.TemporaryDirectory() as folder, spark_session("bench", folder=Path(folder)) as spark:
        register(spark)
        _rate(report, "one batch", lambda: batch(spark), FACTS, LEAST_PER_SECOND)
        for rows, limit in ((FACTS, None), (100_000, MOST_MILLISECONDS)):
            micro_batches(spark, rows)
            with CpuSeconds() as cpu:
                times = [one for _ in range(ROUNDS) for one in micro_batches(spark, rows)]
            middle = statistics.median(times)
            well = middle < limit if limit else rows / middle * 1000 >= LEAST_PER_SECOND
            report.add(
                what=f"micro-batches of {rows}",
                rows_per_second=rows / middle * 1000,
                batch_ms=middle,
                worst_ms=max(times),
                limit=limit or LEAST_PER_SECOND,
                well=well,
                cpu_per_million=cpu.seconds / ROUNDS / FACTS * 1e6,
            )
        _rate(report, f"written, {WRITTEN} facts", lambda: write(spark), WRITTEN)
    report.finish()
