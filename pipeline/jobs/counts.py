"""Adds up how many rows of each table finished jobs added or removed.

Metrics show these sums, which outlive the rows of the jobs. They come from the figures that a job stores before and
after its work. A figure is left out unless it is an integer before the work and after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.db import connections

from pipeline.jobs.arguments import DRY_RUN
from pipeline.models import Job
from streams.replication.common.worker_sql import add_counts

__all__ = ["changed_rows", "count_rows"]

KIND = "job rows"


def count_rows(job: int, using: str) -> None:
    """Adds the changes that a job has stored to the sums. For a dry run, which changes nothing, it does nothing."""
    found = Job.objects.using(using).values_list("kind", "arguments", "before", "after")
    kind, arguments, before, after = found.get(pk=job)
    if arguments.get(DRY_RUN):
        return
    changes = [
        {"kind": KIND, "name": f"{kind}|{table}|{action}", "total": rows}
        for table, action, rows in changed_rows(before or {}, after or {})
    ]
    if changes:
        with connections[using].cursor() as cursor:
            add_counts(cursor, changes)


def changed_rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yields (table, ``added`` or ``removed``, rows) for each figure that differs, sorted by the table's name."""
    for table in sorted(before.keys() & after.keys()):
        old, new = before[table], after[table]
        # "|" separates the parts of a sum's name, so the name of a table must not contain it
        if isinstance(old, int) and isinstance(new, int) and old != new and "|" not in table:
            yield table, "added" if new > old else "removed", abs(new - old)
