"""Adds up how many rows of each table finished jobs added or removed.

The sums are shown as metrics. The sums are not stored in the rows of jobs, because old jobs are removed. A job stores
figures before and after its work, and the differences are added to the sums. If one of the two values of a figure is no
integer, the figure is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.db import connections

from streams.jobs.arguments import DRY_RUN
from streams.jobs.models import Job
from streams.replication.common.worker_sql import add_counts

KIND = "job rows"


def count_rows(job: int, using: str) -> None:
    """Adds the differences between a job's stored figures to the sums. Ignores dry runs, which change nothing."""
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
