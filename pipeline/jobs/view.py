"""Jobs as a person sees them. The terminal and the admin use the same words."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pipeline.errors import UnknownJob
from pipeline.jobs.rows import killed_jobs
from pipeline.models import Job, JobState
from streams.db.clock import database_now
from streams.runtime.text import printable

__all__ = ["Figure", "JobView", "figures_of", "job_view", "job_views", "progress_text", "view_of"]

#: The order of a list by state: running jobs, waiting jobs, and all others.
_FIRST = {JobState.RUNNING: 0, JobState.QUEUED: 1}
KILLED = "killed"
_MOST_FIGURES = 200
_LONGEST_FIGURE = 200


@dataclass(frozen=True, slots=True)
class JobView:
    """One job as of the database's time ``as_of``."""

    job: Job
    as_of: datetime
    is_killed: bool = False
    """True if the state is ``running`` and no process works on the job."""

    @property
    def word(self) -> str:
        """The job's state, or ``killed``."""
        return KILLED if self.is_killed else self.job.state

    @property
    def progress(self) -> str:
        """Stage, amount done, rate and time left."""
        return progress_text(self.job)

    @property
    def seconds(self) -> float | None:
        """The seconds that the job took, or has taken so far. Null if it has not begun."""
        if self.job.started_at is None:
            return None
        return ((self.job.finished_at or self.as_of) - self.job.started_at).total_seconds()

    @property
    def took(self) -> str:
        """The time that the job took, as hours, minutes and seconds. Empty if the job has not begun."""
        return str(timedelta(seconds=round(self.seconds))) if self.seconds is not None else ""

    @property
    def figures(self) -> list[Figure]:
        """The figures before and after the work, side by side."""
        return figures_of(self.job.before, self.job.after)

    def cells(self) -> list[str]:
        """Returns one line of a terminal's table: job, kind, state, progress, user, begin, duration."""
        job = self.job
        began = job.started_at.strftime("%Y-%m-%d %H:%M:%S") if job.started_at else ""
        told = printable(job.kind), self.word, self.progress, printable(job.asked_by)
        return [str(job.pk), *told, began, self.took]

    def as_json(self) -> dict[str, Any]:
        """Returns the job as JSON for scripts, with times in ISO form."""
        job = self.job
        times = {"queued_at": job.queued_at, "began_at": job.started_at, "ended_at": job.finished_at}
        return {
            "job": job.pk, "kind": job.kind, "state": self.word, "arguments": job.arguments, "asked_by": job.asked_by,
            "progress": self.progress, "seconds_left": None if self.is_killed else job.seconds_left, "error": job.error,
            "before": job.before, "after": job.after, "summary": job.summary,
            **{name: at.isoformat() if at else None for name, at in times.items()},
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a job as text, before and after its work. ``change`` is empty unless both are numbers."""

    name: str
    before: str
    after: str
    change: str


def figures_of(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[Figure]:
    """Returns a figure for each name in ``before`` or ``after``, at most 200. The names of ``before`` come first."""
    old, new = (_named(found) for found in (before, after))
    names = list(dict.fromkeys([*old, *new]))[:_MOST_FIGURES]
    return [Figure(printable(name), *_pair(old.get(name), new.get(name))) for name in names]


def _named(found: Any) -> Mapping[str, Any]:
    """Returns stored figures as a mapping.

    They may be any JSON, because another service may have written the row.
    """
    if found is None or isinstance(found, Mapping):
        return found or {}
    return {"figures": found}


def _pair(before: Any, after: Any) -> tuple[str, str, str]:
    change = ""
    if _is_number(before) and _is_number(after):
        change = f"{after - before:+,}" if after != before else "0"
    return _figure_text(before), _figure_text(after), change


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _figure_text(value: Any) -> str:
    if value is None:
        return ""
    text = (
        f"{value:,}"
        if _is_number(value)
        else value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False)
    )
    text = printable(text)
    return text if len(text) <= _LONGEST_FIGURE else f"{text[:_LONGEST_FIGURE]}…"


def job_view(job: int, using: str) -> JobView:
    """Returns one job. Raises ``UnknownJob``."""
    row = Job.objects.using(using).filter(pk=job).first()
    if row is None:
        raise UnknownJob(f"There is no job {job}. manage.py jobs lists them.")
    return view_of(row, database_now(using), killed_jobs(using))


def job_views(limit: int, using: str) -> list[JobView]:
    """Returns the newest ``limit`` jobs: running jobs first, then waiting jobs, then the others."""
    killed = killed_jobs(using)
    rows = list(Job.objects.using(using).order_by("-pk")[:limit])
    # The sort is stable, so jobs with the same place stay newest first.
    rows.sort(key=lambda job: _FIRST.get(JobState(job.state), 2))
    as_of = database_now(using)
    return [view_of(job, as_of, killed) for job in rows]


def view_of(job: Job, as_of: datetime, killed: Collection[int] = ()) -> JobView:
    """Returns a job as a person sees it.

    ``as_of`` is the database's time. ``killed`` are the jobs that no process works on.
    """
    return JobView(job, as_of, job.pk in killed and job.state == JobState.RUNNING)


def progress_text(job: Job) -> str:
    """Returns stage, amount done, total, rate and time left. Empty if the job waits or nothing is known."""
    if job.state == JobState.QUEUED or not (job.stage or job.done):
        return ""
    text = f"{job.stage}: {job.done:,}" if job.stage else f"{job.done:,}"
    text += f" of {job.total:,}" if job.total is not None else ""
    text += f" {job.unit}" if job.unit else ""
    text += f", {job.rate:,.0f}/s" if job.rate else ""
    left = job.seconds_left
    text += f", {left:,.0f} s left" if left is not None else ""
    return text + (", asked to end" if job.cancel_asked_by and job.state == JobState.RUNNING else "")
