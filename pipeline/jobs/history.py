"""The history of jobs is bounded: rows of jobs that are over go after some days, and the oldest when there are too many.

With a job go the rows that tell of it: what it refused, loaded and read. Jobs that wait or run stay, and so does one that a
process holds, because it is just being resumed. One that was killed a day ago, and that nobody resumed, is over: it has failed.
``manage.py runjobs`` calls this now and then; what it leaves when it is stopped in the middle is removed the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from django.db import connections
from django.db.models.functions import Now

from pipeline.conf import pipeline_settings
from pipeline.jobs.rows import JobLock, close_killed
from pipeline.jobs.run import job_kinds
from pipeline.models import Job

__all__ = ["remove_old_jobs"]

_JOBS_AT_ONCE = 100
_ROWS_AT_ONCE = 10_000
_KILLED_FOR = timedelta(days=1)
_OVER = "state IN ('done', 'failed', 'cancelled')"
#: A job's row stays while there are tables that tell its number: the next job of the kind removes them.
_DUE = f"""
SELECT id FROM pipeline_job job WHERE {_OVER} AND id > %(after)s AND (
    coalesce(finished_at, updated_at) < clock_timestamp() - %(days)s * interval '1 day'
    OR id <= (SELECT id FROM pipeline_job WHERE {_OVER} ORDER BY id DESC OFFSET %(count)s LIMIT 1)
) AND NOT EXISTS (
    SELECT FROM pg_tables, unnest(%(prefixes)s::text[]) AS prefix
    WHERE schemaname = current_schema() AND starts_with(tablename, prefix || job.id || '_')
) ORDER BY id LIMIT {_JOBS_AT_ONCE}
"""
_ROWS = f"DELETE FROM {{table}} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {{table}} WHERE {{column}} = %s LIMIT {_ROWS_AT_ONCE}))"
_JOB = f"DELETE FROM pipeline_job WHERE id = %s AND {_OVER}"
_IS_OVER = f"SELECT count(*) FROM pipeline_job WHERE id = %s AND {_OVER}"


def remove_old_jobs(lock: JobLock, using: str, stopping: Callable[[], bool] = lambda: False) -> int:
    """Remove what is due by the settings, in small transactions; returns how many jobs went. Not inside a transaction."""
    removed = 0
    close_killed(lock, using, updated_at__lt=Now() - _KILLED_FOR)
    with connections[using].cursor() as cursor:
        for job in _due(cursor):
            if stopping():
                break
            if lock.take(job):
                try:
                    removed += _remove(cursor, job)
                finally:
                    lock.give_back(job)
    return removed


def _due(cursor: Any) -> Iterator[int]:
    settings = pipeline_settings()
    prefixes = [kind.staging_prefix for kind in job_kinds().values() if kind.staging_prefix]
    after = 0
    while True:
        names = {
            "after": after, "days": settings.job_history_days, "count": settings.job_history_count, "prefixes": prefixes,
        }  # fmt: skip
        cursor.execute(_DUE, names)
        found = [job for (job,) in cursor.fetchall()]
        if not found:
            return
        yield from found
        after = found[-1]


def _remove(cursor: Any, job: int) -> bool:
    """Each statement is a transaction. False when the job was begun again since it was listed."""
    cursor.execute(_IS_OVER, [job])
    if cursor.fetchone() == (0,):
        return False
    for table, column in _relations():
        statement = _ROWS.format(table=table, column=column)
        cursor.execute(statement, [job])
        while cursor.rowcount == _ROWS_AT_ONCE:
            cursor.execute(statement, [job])
    cursor.execute(_JOB, [job])
    return bool(cursor.rowcount)


def _relations() -> Iterator[tuple[str, str]]:
    """Tables that tell of jobs, each with its column of the job's number."""
    for relation in Job._meta.related_objects:
        yield relation.field.model._meta.db_table, str(relation.field.column)
