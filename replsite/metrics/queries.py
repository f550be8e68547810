"""Counts queries as django-prometheus does. Its labels are looked up for each connection, not three times for each query.

That look-up took as long as half of a small query.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from django_prometheus.db import errors_total, execute_many_total, execute_total, query_duration_seconds
from django_prometheus.db.backends.postgresql import base


def counting_cursor(cursor_class: type[Any], alias: str, vendor: str) -> type[Any]:
    """Returns a class of cursors that count what they execute. It takes the place of ``ExportingCursorWrapper``."""
    executed, executed_many, duration = (
        metric.labels(alias, vendor) for metric in (execute_total, execute_many_total, query_duration_seconds)
    )

    class CountingCursor(cursor_class):
        def execute(self, *args: Any, **kwargs: Any) -> Any:
            executed.inc()
            return counted(super().execute, *args, **kwargs)

        def executemany(self, query: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
            executed.inc(len(values))
            executed_many.inc(len(values))
            return counted(super().executemany, query, values, *args, **kwargs)

    def counted(execute: Any, *args: Any, **kwargs: Any) -> Any:
        begun = perf_counter()
        try:
            return execute(*args, **kwargs)
        except Exception as error:
            errors_total.labels(alias, vendor, type(error).__name__).inc()
            raise
        finally:
            duration.observe(perf_counter() - begun)

    return CountingCursor


base.ExportingCursorWrapper = counting_cursor
