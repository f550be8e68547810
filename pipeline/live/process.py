"""Runs the live pipeline: a Spark session with the query that keeps the counts of rooms current.

``run`` blocks until the process is to stop, until the query had nothing to do for ``until_idle_seconds``, or until the
query has failed several times in a row. If the database cannot be reached, ``run`` waits for it, and then restarts the
query at the position of its tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import Error as DjangoError
from django.db import connections

from pipeline.conf import pipeline_settings
from pipeline.errors import QueryFailed, QueryRunning
from pipeline.live.ledger import Vectors, covers, ledger_vectors
from pipeline.live.query import LiveQuery, Place
from pipeline.live.statistics_table import StatisticsTable
from pipeline.spark.site_session import site_session
from streams.conf import stream_settings
from streams.db.driver import DatabaseError, direct_connection, dsn, explain
from streams.db.schema_mark import marked_lock
from streams.errors import ReaderNameTaken
from streams.reading.looker import follow, look_now
from streams.reading.rows import stored_positions
from streams.runtime.logs import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["LiveOptions", "run"]

log = get_logger(__name__)
_LOCK = "SELECT pg_try_advisory_lock(" + marked_lock("'replsite.pipeline:live'") + ")"
_HOLDER = "SELECT address, process_id FROM streams_reader WHERE name = %s ORDER BY heartbeat_at DESC LIMIT 1"
_APPLIED = "SELECT coalesce(sum(batches), 0) FROM pipeline_batchledger WHERE query = %s"
_POLL_SECONDS = 0.2
_BEAT_SECONDS = 1.0
_ATTEMPTS = 5
"""After this number of failures in a row, the last error is raised. A batch, or a run of `_WELL_SECONDS`, resets the count."""
_WELL_SECONDS = 30.0
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.5, 10.0
_TRIGGER = {"processingTime": "300 milliseconds"}
_LOST = (DatabaseError, DjangoError)


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """The options of the live pipeline.

    ``master`` is the Spark master. If it is empty, the master in the site's settings is used. The pipeline ends when it
    was idle for ``until_idle_seconds``. If this is None, the pipeline does not end when it is idle.
    """

    master: str = ""
    until_idle_seconds: float | None = None


def run(options: LiveOptions, stopping: Callable[[], bool], started: Callable[[], None]) -> dict[str, Vectors]:
    """Keeps the counts of rooms current until the process is to stop, or the pipeline was idle for ``until_idle_seconds``.

    Returns the vectors that the query has reached: query -> stream -> vector. Returns {} if the process was stopped
    while it waited for a retry. Calls ``started`` once, when the query runs. Raises ``QueryRunning``, ``QueryFailed``
    and the errors of ``site_session``.
    """
    using = stream_settings().database
    with site_session("pipeline", options.master) as spark:
        spark.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))  # sums are small
        pipeline = _Pipeline(spark, options, using)
        retry = _Retry(stopping)
        while True:
            try:
                with pipeline.running():
                    started()
                    started = _nothing
                    pipeline.watch(stopping, retry.went_well)
                return pipeline.reached()
            except (*_LOST, QueryFailed) as error:
                connections[using].close()
                if not retry.wait_after(error):
                    return {}


def _nothing() -> None:
    """Does nothing. Replaces ``started`` after ``started`` was called once."""


class _Retry:
    """The retry policy. It retries without limit while the database cannot be reached, and a few times if a query fails."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._failed = 0
        self._seconds = _FIRST_RETRY_SECONDS

    def went_well(self) -> None:
        """Resets the policy. Called after a batch was applied, or when the query has run for some time without an error."""
        self._failed, self._seconds = 0, _FIRST_RETRY_SECONDS

    def wait_after(self, error: Exception) -> bool:
        """Waits before the next attempt. The waiting time doubles with each failure, up to a limit.

        Returns true if the caller is to retry, false if the process is to stop. Raises ``error`` if the query has failed
        too many times in a row.
        """
        if isinstance(error, QueryFailed):
            self._failed += 1
            if self._failed >= _ATTEMPTS:
                raise error
        log.warning("pipeline.begins_anew", error=explain(error), seconds=self._seconds)
        ends_at = time.monotonic() + self._seconds
        self._seconds = min(self._seconds * 2, _LONGEST_RETRY_SECONDS)
        while time.monotonic() < ends_at:
            if self._stopping():
                return False
            time.sleep(_POLL_SECONDS)
        return not self._stopping()


class _Pipeline:
    """The query of the live pipeline in this process. At each start, it begins at the position of its tables."""

    def __init__(self, spark: SparkSession, options: LiveOptions, using: str) -> None:
        self._spark, self._options, self._using = spark, options, using
        self._table = StatisticsTable(using)
        self._query: StreamingQuery
        self._held: Any = None
        self._batches = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keeps Spark's streaming query running while the ``with`` block runs.

        Holds the lock of the live pipeline, and the name of the table's reader.
        """
        place = Place(dsn(self._using), self._using, pipeline_settings().folder / "checkpoints")
        with _only_one(self._using, self._table.reader) as self._held, self._name_held():
            self._query = LiveQuery(self._table, place).start(self._spark, _TRIGGER)
            try:
                yield
            finally:
                self._query.stop()

    @contextmanager
    def _name_held(self) -> Iterator[None]:
        try:
            with self._table.held():
                yield
        except ReaderNameTaken as error:
            raise QueryRunning(str(error)) from error

    def watch(self, stopping: Callable[[], bool], went_well: Callable[[], None]) -> None:
        """Checks repeatedly that the query runs. Raises ``QueryFailed``.

        Returns when the process is to stop, or when the pipeline was idle for ``until_idle_seconds``.
        """
        beaten = 0.0
        started_at = busy_at = time.monotonic()
        limit = self._options.until_idle_seconds
        while not stopping():
            self._check_query()
            now = time.monotonic()
            if now - beaten >= _BEAT_SECONDS:
                beaten = now
                # The query sees stored positions only. A site without a process that looks would never have new ones.
                look_now(self._using, even_if_led=False)
                if self._applied_more() or now - started_at >= _WELL_SECONDS:
                    went_well()
                if not self._caught_up():
                    busy_at = now
                elif limit is not None and now - busy_at >= limit:
                    break
            time.sleep(_POLL_SECONDS)

    def reached(self) -> dict[str, Vectors]:
        with connections[self._using].cursor() as cursor:
            return {self._table.name: ledger_vectors(cursor, self._table.name)}

    def _check_query(self) -> None:
        if not self._query.isActive:
            why = _message_of(self._query.exception())
            raise QueryFailed(f"The query {self._table.name} of the live pipeline has failed: {why}")
        if self._held.closed or self._table.is_lost:
            raise QueryFailed("The live pipeline has lost the connection that holds its name.")

    def _applied_more(self) -> bool:
        """Returns true if batches were applied since the last call.

        The query runs on the connection that holds the pipeline's lock. So an error is raised if this connection, and
        with it the lock, is lost.
        """
        with self._held.cursor() as cursor:
            cursor.execute(_APPLIED, [self._table.name])
            before, self._batches = self._batches, int(cursor.fetchone()[0])
        return self._batches > before

    def _caught_up(self) -> bool:
        """Returns true if the table has reached the stored positions of its streams."""
        with connections[self._using].cursor() as cursor:
            stored = stored_positions(cursor, self._table.streams)
            there = {stream: {writer: at.position for writer, at in known.items()} for stream, known in stored.items()}
            return covers(ledger_vectors(cursor, self._table.name), there)


@contextmanager
def _only_one(using: str, reader: str) -> Iterator[Any]:
    """Holds the session lock of the live pipeline while the block runs. Yields the connection that holds the lock.

    The lock ends with the process, even if the process is killed. Raises ``QueryRunning`` if another process holds the
    lock.
    """
    connection = direct_connection(using, application_name="replsite pipeline")
    try:
        with connection.cursor() as cursor:
            cursor.execute(_LOCK)
            if not cursor.fetchone()[0]:
                cursor.execute(_HOLDER, [reader])
                address, process = cursor.fetchone() or ("another host", "?")
                host = address.removesuffix(f":{process}")
                raise QueryRunning(
                    f"The live pipeline runs already, in process {process} on {host}. Two would wait for each other's "
                    f"transactions: stop that one, or leave it at work."
                )
            follow(cursor)
        yield connection
    finally:
        connection.close()


def _message_of(error: Exception | None) -> str:
    """Returns the message of ``error`` without the Java stack trace."""
    if error is None:
        return "it has ended"
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    named = [line for line in lines if "Error" in line or "Exception" in line]
    return (named or lines or [type(error).__name__])[-1][:1000]
