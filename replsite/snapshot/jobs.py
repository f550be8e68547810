"""Reads jobs for the snapshot: those that are queued or running, and those that ended within a day.

Three queries on a Django cursor read the jobs, each with a limit. A site that has not installed ``pipeline`` has no jobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from shlex import quote
from typing import Any

from replsite import rooms
from replsite.snapshot.types import JobFigures, JobStatusView, JobsView, QueryFigures
from replsite.status.verdicts import JobSeen, judge_job
from streams.runtime.amounts import counted
from streams.runtime.text import safe_text

__all__ = ["MOST_OPEN_JOBS", "MOST_OVER_JOBS", "read_jobs"]

MOST_OPEN_JOBS = 50
MOST_OVER_JOBS = 10
#: The most rooms that a command names. If there are more, the command is for all rooms.
_MOST_NAMED = 3

if rooms.has("pipeline"):
    from streams.jobs.rate import rate_of
    from streams.jobs.sql import KILLED_JOBS
else:
    KILLED_JOBS = ""

#: The number of differences that a resync has left unrepaired. It is 0 once a later resync has compared the same rooms: then
#: the number of the later one counts. Another service may have written a row, so its JSON may have any form.
_LEFT = """
CASE WHEN kind = 'resync' AND state = 'done' AND jsonb_typeof(summary->'left') = 'number'
    AND jsonb_typeof(arguments) = 'object' AND NOT EXISTS (
        SELECT FROM pipeline_job AS later WHERE later.kind = 'resync' AND later.state = 'done' AND later.id > checked.id
        AND (later.arguments->'what' = checked.arguments->'what' OR later.arguments->>'what' = 'rooms'
            AND checked.arguments->>'what' IN ('state', 'extremities', 'visibility'))
        AND (coalesce(later.arguments->'rooms', 'null') = 'null' OR (later.arguments->'rooms') @> (checked.arguments->'rooms'))
    ) THEN least((summary->>'left')::numeric, 1000000000)::bigint ELSE 0 END
"""
_JOBS = f"""
WITH killed AS ({KILLED_JOBS}),
open AS (
    SELECT * FROM pipeline_job WHERE state IN ('queued', 'running')
    ORDER BY id IN (SELECT id FROM killed), id LIMIT {MOST_OPEN_JOBS}
),
over AS (
    SELECT * FROM (
        SELECT *, {_LEFT} AS differences FROM pipeline_job AS checked
        WHERE state NOT IN ('queued', 'running') AND finished_at > clock_timestamp() - interval '1 day'
    ) AS ended ORDER BY differences > 0 DESC, id DESC LIMIT {MOST_OVER_JOBS}
)
SELECT id, kind, state, id IN (SELECT id FROM killed), asked_by, stage, unit, done, total, rate, error, cancel_asked_by,
    differences, CASE WHEN differences > 0 THEN arguments::text END, queued_at, started_at, finished_at
FROM (SELECT *, 0 AS differences FROM open UNION ALL SELECT * FROM over) AS job ORDER BY id
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
    if not rooms.has("pipeline"):
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
    number, kind, state, killed, by, stage, unit, done, total, rate, error, ending, *more = row
    differences, arguments, queued_at, began_at, ended_at = more
    waits = (as_of - queued_at).total_seconds() if state == "queued" and queued_at else None
    left = max(total - done, 0) / rate if state == "running" and not killed and rate and total is not None else None
    seen = JobSeen(state, killed, error, waits, is_served, bool(ending), left)
    if differences > 0:
        where, repair = _where_and_repair(json.loads(arguments))
        seen = replace(seen, differences=differences, where=where, repair=repair)
    return JobStatusView(
        id=number, kind=kind, asked_by=by, stage=stage, unit=unit, done=done, total=total,
        rate=rate_of(done, rate, began_at, ended_at), seconds_left=left,
        queued_at=queued_at, began_at=began_at, ended_at=ended_at, status=judge_job(seen),
    )  # fmt: skip


def _where_and_repair(arguments: Mapping[str, Any]) -> tuple[str, str]:
    """Returns (rooms or streams that a resync with these arguments compares, as text; command that repairs their differences).

    The command is empty if the job was no dry run.
    """
    found, what = arguments.get("rooms"), str(arguments.get("what", ""))
    named = [str(one) for one in found] if isinstance(found, list) else []
    where = safe_text(named[0]) if len(named) == 1 else counted(len(named), "room") if named else "all rooms"
    if not arguments.get("dry_run"):
        return where, ""
    rest = [quote(one) for one in named] if 0 < len(named) <= _MOST_NAMED else ["--all"]
    if what == "positions":
        where, rest = "the streams", []
    return where, " ".join(["manage.py resync", quote(what), *rest])
