"""The live pipeline's process: one session, the queries that keep derived tables current, an orderly end.

Blocks in ``run`` until it is told to stop, until nothing is left (``until_idle_seconds``), or until a query fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import connections

from pipeline.conf import pipeline_settings
from pipeline.counts import QUERY, READER, CountsQuery, ledger_vector
from pipeline.errors import PipelineError, QueryRunning
from pipeline.reader_rows import ReaderRow, beat_reader, close_reader, store_reader
from pipeline.session import spark_session
from pipeline.source import Vector, register
from streams.conf import stream_settings
from streams.database import direct_connection, dsn
from streams.readers import stored_positions

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["LiveOptions", "run"]

_STREAM = "events"
_LOCK = "SELECT pg_try_advisory_lock(hashtextextended('replsite.pipeline:' || %s, 0))"
_POLL_SECONDS = 0.2
_BEAT_SECONDS = 1.0
_TRIGGER = {"processingTime": "300 milliseconds"}


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How to run: on which Spark, and whether to end by itself."""

    master: str
    until_idle_seconds: float | None = None


def run(options: LiveOptions, stopping: Callable[[], bool], started: Callable[[], None]) -> Vector:
    """Keep the tables current; returns the vector reached. Raises ``QueryRunning`` and ``PipelineError``."""
    settings = pipeline_settings()
    using = stream_settings().database
    with (
        _only_one(using),
        spark_session("pipeline", folder=settings.folder, master=options.master, project=settings.project) as spark,
    ):
        register(spark)
        counts = CountsQuery(dsn(using), settings.folder / "checkpoints" / QUERY, using)
        query = counts.start(spark, _TRIGGER)
        with connections[using].cursor() as cursor:
            store_reader(cursor, ReaderRow(READER, os.getpid(), {_STREAM: ledger_vector(cursor, QUERY)}))
        started()
        try:
            _watch(query, using, options, stopping)
        finally:
            query.stop()
        with connections[using].cursor() as cursor:
            close_reader(cursor, READER, "stopped")
            return ledger_vector(cursor, QUERY)


@contextmanager
def _only_one(using: str) -> Iterator[None]:
    """Hold the query's lock for the block; it goes with the process, however that ends."""
    connection = direct_connection(using, application_name=f"replsite pipeline {QUERY}")
    try:
        with connection.cursor() as cursor:
            cursor.execute(_LOCK, [QUERY])
            if not cursor.fetchone()[0]:
                cursor.execute("SELECT address, process_id FROM streams_reader WHERE name = %s", [READER])
                host, process = cursor.fetchone() or ("another host", "?")
                raise QueryRunning(
                    f"The live pipeline runs already, in process {process} on {host}. Two would wait for each other's "
                    f"transactions: stop that one, or leave it at work."
                )
        yield
    finally:
        connection.close()


def _watch(query: StreamingQuery, using: str, options: LiveOptions, stopping: Callable[[], bool]) -> None:
    """Until the end: signs of life, and whether there is still something to do."""
    beaten, busy_at = 0.0, time.monotonic()
    while not stopping():
        if not query.isActive:
            raise PipelineError(f"The query {QUERY} has failed: {query.exception()}")
        now = time.monotonic()
        if now - beaten >= _BEAT_SECONDS:
            beaten = now
            if not _caught_up(using):
                busy_at = now
            elif options.until_idle_seconds is not None and now - busy_at >= options.until_idle_seconds:
                return
        time.sleep(_POLL_SECONDS)


def _caught_up(using: str) -> bool:
    """Beat, and compare the table's vector with the stored positions."""
    with connections[using].cursor() as cursor:
        beat_reader(cursor, READER)
        reached: dict[str, Any] = ledger_vector(cursor, QUERY)
        stored = stored_positions(cursor, [_STREAM]).get(_STREAM, {})
    return all(reached.get(writer, 0) >= at.position for writer, at in stored.items())
