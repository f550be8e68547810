"""The table of jobs: a row for each job that is queued or running, or ended within a day (pure).

Here are the classes of these rows, the queries that fill them, each with a limit, and the columns that show them. A site that
has not installed ``pipeline`` has no jobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from shlex import quote
from typing import Any

from replsite.live_rows.cells import (
    HIDDEN,
    NO_STATUS,
    NOTHING,
    Cell,
    Column,
    Group,
    Table,
    joined,
    moment_cell,
    text_cell,
)
from replsite.status.words import Verdict
from streams.jobs.rate import rate_of
from streams.jobs.sql import KILLED_JOBS
from streams.runtime.amounts import count, counted, done_of, duration
from streams.runtime.text import safe_text

MOST_OPEN_JOBS = 50
MOST_OVER_JOBS = 10
#: The most rooms that a command names. If there are more, the command is for all rooms.
_MOST_NAMED = 3

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


@dataclass(slots=True)
class JobRow:
    """A job that is queued or running, or that ended within a day.

    ``done`` and ``total`` are amounts of the present stage, in ``unit``, for example events. ``rate`` is the growth of
    ``done`` per second in this stage. If the job is over, ``rate`` is the average over the job's whole time.
    """

    id: int
    kind: str
    state: str = field(metadata=HIDDEN)
    killed: bool = field(default=False, metadata=HIDDEN)
    asked_by: str = ""
    stage: str = ""
    unit: str = ""
    done: int = 0
    total: int | None = None
    rate: float | None = None
    error: str = field(default="", metadata=HIDDEN)
    cancel_asked_by: str = field(default="", metadata=HIDDEN)
    differences: int = field(default=0, metadata=HIDDEN)
    """The number of differences that a resync has left, and that no later one has compared again."""
    arguments: str | None = field(default=None, metadata=HIDDEN)
    """Its arguments as JSON, if there are differences."""
    queued_at: datetime | None = None
    began_at: datetime | None = None
    ended_at: datetime | None = None
    is_served: bool = field(default=False, metadata=HIDDEN)
    """True: another queued job is running, so a process carries them out."""
    where: str = field(default="", metadata=HIDDEN)
    """The rooms with differences, in words."""
    repair: str = field(default="", metadata=HIDDEN)
    """The command that repairs them. Empty: the job tried to, so they cannot be recomputed."""
    seconds_left: float | None = None
    status: Verdict = NO_STATUS


@dataclass(frozen=True, slots=True)
class JobFigures:
    """The times of the last success and the last failure of a kind of job."""

    kind: str
    last_success_at: datetime | None
    last_failure_at: datetime | None


@dataclass(frozen=True, slots=True)
class QueryFigures:
    """The progress of a query of the live pipeline: its number of applied batches, and the time of the last one.

    Batches are counted from the creation of the query's tables.
    """

    query: str
    batches: int
    applied_at: datetime


@dataclass(frozen=True, slots=True)
class JobsView:
    """Jobs, worst first, with the last success and failure of each kind, and the progress of the live queries."""

    jobs: tuple[JobRow, ...] = ()
    kinds: tuple[JobFigures, ...] = ()
    queries: tuple[QueryFigures, ...] = ()


def read_jobs(cursor: Any) -> JobsView:
    """Returns the jobs, with the last success and failure of each kind of job, and the progress of the live queries."""
    cursor.execute(_JOBS)
    jobs = tuple(JobRow(*row) for row in cursor.fetchall())
    for job in jobs:
        is_running = job.state == "running" and not job.killed
        if is_running and job.rate and job.total is not None:
            job.seconds_left = max(job.total - job.done, 0) / job.rate
        job.is_served = any(j.state == "running" and j.queued_at and not j.killed for j in jobs)
        job.rate = rate_of(job.done, job.rate, job.began_at, job.ended_at)
        if job.arguments is not None:
            job.where, job.repair = _where_and_repair(json.loads(job.arguments))
    cursor.execute(_FIGURES)
    kinds = tuple(JobFigures(*row) for row in cursor.fetchall())
    cursor.execute(_QUERIES)
    return JobsView(jobs, kinds, tuple(QueryFigures(*row) for row in cursor.fetchall()))


def _where_and_repair(arguments: Mapping[str, Any]) -> tuple[str, str]:
    """Returns (rooms or streams that a resync with these arguments compares, as text; command that repairs their differences).

    The command is empty if the job was no dry run.
    """
    found, kind = arguments.get("rooms"), str(arguments.get("what", ""))
    named = [str(room) for room in found] if isinstance(found, list) else []
    where = safe_text(named[0]) if len(named) == 1 else counted(len(named), "room") if named else "all rooms"
    if not arguments.get("dry_run"):
        return where, ""
    rest = [quote(room) for room in named] if 0 < len(named) <= _MOST_NAMED else ["--all"]
    if kind == "positions":
        where, rest = "the streams", []
    return where, " ".join(["manage.py resync", quote(kind), *rest])


def _progress(job: JobRow) -> Cell | str:
    if not job.stage and not job.done:
        return NOTHING
    rate = f"{count(round(job.rate))}/s" if job.rate else ""
    cell = text_cell(done_of(job.done, job.total, job.unit), joined(job.stage, rate))
    if job.total and job.ended_at is None:
        cell["share"] = round(min(job.done / job.total, 1.0), 3)
    return cell


JOBS = Table(
    "Jobs",
    "What is at work or waits, and what ended within a day.",
    "No job is at work, and none ended within a day.",
    (
        Column("Job", {
            JobRow: lambda job: text_cell(
                job.kind, joined(f"job {job.id}", job.asked_by and f"asked for by {job.asked_by}")
            ),
        }, number=False),
        Column("Progress", {JobRow: _progress}),
        Column("Time left", {
            JobRow: lambda job: (
                NOTHING if job.seconds_left is None else text_cell(duration(job.seconds_left), "in this stage")
            ),
        }),
        Column("Began", {
            JobRow: lambda job: moment_cell(job.began_at) if job.began_at else moment_cell(job.queued_at, "queued"),
        }),
    ),
    has_menu=True,
)  # fmt: skip


def job_groups(jobs: JobsView) -> list[Group]:
    """Returns a group for each job: a row without further rows."""
    return [
        {"key": str(job.id), "head": JOBS.row(job, admin_id=str(job.id), about=str(job.id)), "rows": []}
        for job in jobs.jobs
    ]
