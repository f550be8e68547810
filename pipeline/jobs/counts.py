"""By how many rows jobs that are done changed each table, in sum: for metrics, which outlive the rows of jobs.

The figures are those that a job notes before and after its work; what is not a number in both is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.db import connections

from pipeline.models import Job
from streams.replication.common.worker_sql import add_counts

__all__ = ["changed_rows", "count_rows"]

KIND = "job rows"


def count_rows(job: int, using: str) -> None:
    """Add what a job changed to the sums."""
    kind, before, after = Job.objects.using(using).values_list("kind", "before", "after").get(pk=job)
    changes = [
        {"kind": KIND, "name": f"{kind}|{table}|{action}", "total": rows}
        for table, action, rows in changed_rows(before or {}, after or {})
    ]
    if changes:
        with connections[using].cursor() as cursor:
            add_counts(cursor, changes)


def changed_rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """(table, ``added`` or ``removed``, rows) of every figure that differs."""
    for table in sorted(before.keys() & after.keys()):
        old, new = before[table], after[table]
        if isinstance(old, int) and isinstance(new, int) and old != new and "|" not in table:
            yield table, "added" if new > old else "removed", abs(new - old)
