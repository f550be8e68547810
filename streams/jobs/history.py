"""Removes the rows of old jobs, so that the history of jobs stays bounded.

A job is over if its state is done, failed or cancelled. A job that is over is removed some days after its end. If more
jobs are over than are kept, the oldest are removed earlier. Rows of other tables that refer to a removed job
are removed too, for example its quarantined lines. Waiting and running jobs are not removed. If a process holds the
lock of a job, the job is not removed either, because that process is resuming the job.

A job that was killed more than a day ago and was not resumed is first marked as failed. ``manage.py runjobs`` removes old
jobs at most once an hour, while nothing is queued. If a removal is stopped in the middle, the next removal continues it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import connections
from django.db.models.functions import Now

from streams.jobs.models import Job
from streams.jobs.operation import operations
from streams.jobs.rows import JobLock, close_killed

_JOBS_AT_ONCE = 100
_ROWS_AT_ONCE = 10_000
#: The time since its last update after which a killed job counts as failed.
_KILLED_FOR = timedelta(days=1)
_OVER = "state IN ('done', 'failed', 'cancelled')"
#: A job's row stays as long as there are staging tables with its number in their names. The next job of its kind drops
#: these tables.
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


class Kept(NamedTuple):
    """The jobs that are over and are kept: those of the last ``days``, but at most so many."""

    days: float
    jobs: int


def remove_old_jobs(lock: JobLock, using: str, kept: Kept, stopping: Callable[[], bool] = lambda: False) -> int:
    """Removes the jobs that are not to be kept, in small transactions. Returns the number of jobs removed.

    ``stopping`` is called before each job. If ``stopping`` returns true, no further job is removed. Do not call this
    function inside a transaction.
    """
    removed = 0
    close_killed(lock, using, updated_at__lt=Now() - _KILLED_FOR)
    with connections[using].cursor() as cursor:
        for job in _due(cursor, kept):
            if stopping():
                break
            # While the lock is held here, no process can resume the job. If another process holds it, that process is
            # resuming the job.
            if lock.acquire(job):
                try:
                    removed += _remove(cursor, job)
                finally:
                    lock.release(job)
    return removed


def _due(cursor: Any, kept: Kept) -> Iterator[int]:
    prefixes = [kind.staging_prefix for kind in operations().values() if kind.staging_prefix]
    after = 0
    while True:
        cursor.execute(_DUE, {"after": after, "days": kept.days, "count": kept.jobs, "prefixes": prefixes})
        found = [job for (job,) in cursor.fetchall()]
        if not found:
            return
        yield from found
        after = found[-1]


def _remove(cursor: Any, job: int) -> bool:
    """Deletes a job and the rows that refer to the job. Each statement commits by itself. Returns true if the job is deleted.

    Returns false if the job is not over any more, because a process resumed the job after this process listed it.
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
    for relation in Job._meta.related_objects:
        yield relation.field.model._meta.db_table, str(relation.field.column)
