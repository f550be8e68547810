"""Removes the rows of old jobs, so that the history of jobs stays bounded.

A job is over if its state is done, failed or cancelled. It is removed some days after its end. It is removed earlier if
more jobs are over than the settings allow; the oldest go first. The rows that refer to the job are removed with it:
they tell what the job refused, loaded and read. Waiting and running jobs stay. So does a job whose lock a process
holds, because that process is resuming it.

A job that was killed over a day ago and was not resumed is first marked as failed. ``manage.py runjobs`` removes old
jobs at most once an hour, while nothing is queued. If a removal is stopped in the middle, the next one removes the
rest.
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
#: The time since its last update after which a killed job counts as failed.
_KILLED_FOR = timedelta(days=1)
_OVER = "state IN ('done', 'failed', 'cancelled')"
#: A job's row stays as long as there are staging tables with its number in their names. The next job of its kind drops
#: them.
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
    """Removes the jobs that are old by the settings, in small transactions. Returns how many.

    Ends early if ``stopping`` returns true; it is called before each job. Must not be called inside a transaction.
    """
    removed = 0
    close_killed(lock, using, updated_at__lt=Now() - _KILLED_FOR)
    with connections[using].cursor() as cursor:
        for job in _due(cursor):
            if stopping():
                break
            # While the lock is held here, no process can resume the job. If another process holds it, that process is
            # resuming the job.
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
    """Deletes a job and the rows that refer to it, each statement in a transaction of its own.

    Returns false if the job is no longer over, because a process resumed it after it was listed.
    """
    # A lists the job, B resumes it, fails again and releases the lock, A takes the lock: the row is read again under the lock.
    cursor.execute(_IS_OVER, [job])
    if cursor.fetchone() == (0,):
        return False
    # The row of the job is deleted last. So if a removal is stopped here, the next one finds the job and continues.
    for table, column in _relations():
        statement = _ROWS.format(table=table, column=column)
        cursor.execute(statement, [job])
        while cursor.rowcount == _ROWS_AT_ONCE:
            cursor.execute(statement, [job])
    cursor.execute(_JOB, [job])
    return bool(cursor.rowcount)


def _relations() -> Iterator[tuple[str, str]]:
    """Yields the tables with a foreign key to jobs, each with the name of the key's column."""
    for relation in Job._meta.related_objects:
        yield relation.field.model._meta.db_table, str(relation.field.column)
