"""Reads jobs for the snapshot: those that are queued or running, and those that ended within a day.

This takes three queries on a Django cursor, each with a limit. A site that has not installed ``pipeline`` has no jobs.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.apps import apps

from pipeline.jobs.sql import KILLED_JOBS
from replsite.snapshot.types import JobFigures, JobStatusView, JobsView, QueryFigures
from replsite.status.verdicts import JobSeen, judge_job

__all__ = ["MOST_OPEN_JOBS", "MOST_OVER_JOBS", "read_jobs"]

MOST_OPEN_JOBS = 50
MOST_OVER_JOBS = 10

_JOBS = f"""
WITH killed AS ({KILLED_JOBS}),
open AS (
    SELECT * FROM pipeline_job WHERE state IN ('queued', 'running')
    ORDER BY id IN (SELECT id FROM killed), id LIMIT {MOST_OPEN_JOBS}
),
over AS (
    SELECT * FROM pipeline_job WHERE state NOT IN ('queued', 'running') AND finished_at > clock_timestamp() - interval '1 day'
    ORDER BY id DESC LIMIT {MOST_OVER_JOBS}
)
SELECT id, kind, state, id IN (SELECT id FROM killed), asked_by, stage, unit, done, total, rate, error, cancel_asked_by,
    queued_at, started_at, finished_at
FROM (SELECT * FROM open UNION ALL SELECT * FROM over) AS job ORDER BY id
"""
_FIGURES = """
SELECT kind, max(finished_at) FILTER (WHERE state = 'done'), max(finished_at) FILTER (WHERE state = 'failed')
FROM pipeline_job GROUP BY kind ORDER BY kind LIMIT 100
"""
_QUERIES = "SELECT query, batches, applied_at FROM pipeline_batchledger ORDER BY query LIMIT 100"


def read_jobs(cursor: Any, as_of: datetime) -> JobsView:
    """Returns the jobs, worst first, with the last success and failure of each kind of job.

    Also returns the progress of the queries of the live pipeline.
    """
    if not apps.is_installed("pipeline"):
        return JobsView()
    cursor.execute(_JOBS)
    rows = cursor.fetchall()
    is_served = any(state == "running" and queued and not killed for _, _, state, killed, *_, queued, _, _ in rows)
    jobs = [_job(row, as_of, is_served=is_served) for row in rows]
    jobs.sort(key=lambda job: (-job.status.severity, -job.id))
    cursor.execute(_FIGURES)
    kinds = tuple(JobFigures(*row) for row in cursor.fetchall())
    cursor.execute(_QUERIES)
    return JobsView(tuple(jobs), kinds, tuple(QueryFigures(*row) for row in cursor.fetchall()))


def _job(row: Any, as_of: datetime, *, is_served: bool) -> JobStatusView:
    number, kind, state, killed, by, stage, unit, done, total, rate, error, ending, queued_at, began_at, ended_at = row
    waits = (as_of - queued_at).total_seconds() if state == "queued" and queued_at else None
    left = max(total - done, 0) / rate if state == "running" and not killed and rate and total is not None else None
    seen = JobSeen(state, killed, error, waits, is_served, bool(ending), left)
    return JobStatusView(
        id=number, kind=kind, asked_by=by, stage=stage, unit=unit, done=done, total=total, rate=rate, seconds_left=left,
        queued_at=queued_at, began_at=began_at, ended_at=ended_at, status=judge_job(seen),
    )  # fmt: skip
