"""A histogram of the delay between the writing of a fact and its handling by a named reader, for this process.

A sample is the age of the last fact of a chunk that was just handled. One indexed query returns this age by the
database's clock. At most five samples are taken per second, so that a reader with many small chunks is not slowed down.
The query runs in the handler's thread, after the handler's transaction.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from django.db import Error, connections

from streams import registry
from streams.core.declaration import StreamDeclaration, quoted
from streams.runtime.logs import get_logger

log = get_logger(__name__)
SAMPLE_SECONDS = 0.2
#: None without the extra `site`, which brings metrics.
DELAY: Any = None
with suppress(ImportError):
    from prometheus_client import Histogram

    DELAY = Histogram(
        "replsite_reader_delay_seconds",
        "Time from the writing of a fact to its handling by a named reader; sampled, five times a second at most",
        ["reader", "stream"],
        buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600),
    )


class DelaySamples:
    """The object that takes the delay samples of one reader on one stream."""

    def __init__(self, reader: str, stream: str, using: str) -> None:
        self._using = using
        self._declaration: StreamDeclaration = registry.get(stream).declaration
        self._histogram = DELAY and DELAY.labels(reader, stream)
        self._sql = age_sql(self._declaration)
        self._due = 0.0

    def handled(self, token: int) -> None:
        """Takes a sample, unless the last sample is too recent. Database errors are only logged.

        ``token`` is the token of the last fact that was handled.
        """
        now = time.monotonic()
        if self._histogram is None or now < self._due:
            return
        self._due = now + SAMPLE_SECONDS
        try:
            age = self._age(token)
        except Error as error:
            log.debug("reader.delay_not_sampled", error=str(error).strip())
            connections[self._using].close()
            return
        if age is not None:
            self._histogram.observe(max(age, 0.0))

    def _age(self, token: int) -> float | None:
        with connections[self._using].cursor() as cursor:
            cursor.execute(self._sql, {"id": token * self._declaration.sign})
            row: Any = cursor.fetchone()
        return None if row[0] is None else float(row[0])


def age_sql(declaration: StreamDeclaration) -> str:
    """Returns the SQL query for the seconds since the fact ``%(id)s`` was written. Its result is null if the fact was trimmed."""
    tables = " UNION ALL ".join(
        f"SELECT {quoted(table.received_column)} AS at FROM {quoted(table.name)} WHERE {quoted(table.id_column)} = %(id)s"
        for table in declaration.tables
    )
    return f"SELECT extract(epoch FROM clock_timestamp() - max(at)) FROM ({tables}) AS found"
