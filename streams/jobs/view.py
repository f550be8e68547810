"""Formats jobs as text for people. The terminal and the admin use the same texts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streams.db.clock import database_now
from streams.jobs.errors import UnknownJob
from streams.jobs.models import Job, JobState
from streams.jobs.rate import rate_of
from streams.jobs.rows import killed_jobs
from streams.runtime.amounts import done_of, duration
from streams.runtime.text import safe_text

#: The order of a list by state: running jobs, waiting jobs, and all others.
_FIRST = {JobState.RUNNING: 0, JobState.QUEUED: 1}
KILLED = "killed"
MOST_FIGURES = 200
_LONGEST_FIGURE = 200


@dataclass(frozen=True, slots=True)
class JobView:
    """A job with its texts for people, at the time ``as_of`` of the database's clock."""

    job: Job
    as_of: datetime
    is_killed: bool = False
    """True if the state is ``running`` and no process works on the job."""

    @property
    def word(self) -> str:
        return KILLED if self.is_killed else self.job.state

    @property
    def progress(self) -> str:
        """A text with stage, amount done, rate and remaining time.

        If the job is over, the rate is the average over the job's whole time.
        """
        return progress_text(self.job)

    @property
    def seconds(self) -> float | None:
        """The seconds that the job took, or has taken so far. None if the job has not begun."""
        if self.job.started_at is None:
            return None
        return ((self.job.finished_at or self.as_of) - self.job.started_at).total_seconds()

    @property
    def duration_text(self) -> str:
        return duration(self.seconds) if self.seconds is not None else ""

    @property
    def figures(self) -> list[Figure]:
        return figures_of(self.job.before, self.job.after)

    def cells(self) -> list[str]:
        """Returns the texts of a row in the terminal's table: job, kind, state, progress, user, begin, duration."""
        job = self.job
        started = job.started_at.strftime("%Y-%m-%d %H:%M:%S") if job.started_at else ""
        texts = safe_text(job.kind, None), self.word, self.progress, safe_text(job.asked_by, None)
        return [str(job.pk), *texts, started, self.duration_text]

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
    """A figure of a job as text, before and after the work. ``change`` is empty if one of the two values is no number."""

    name: str
    before: str
    after: str
    change: str


def figures_of(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[Figure]:
    """Returns a figure for each name in ``before`` or ``after``, at most 200 figures. The names in ``before`` come first."""
    old, new = (_named(found) for found in (before, after))
    names = list(dict.fromkeys([*old, *new]))[:MOST_FIGURES]
    return [Figure(safe_text(name, None), *_pair(old.get(name), new.get(name))) for name in names]


def _named(found: Any) -> Mapping[str, Any]:
    # Another service may have written the job's row, so ``found`` may be any JSON value.
    if found is None or isinstance(found, Mapping):
        return found or {}
    return {"figures": found}


def _pair(before: Any, after: Any) -> tuple[str, str, str]:
    change = ""
    if is_number(before) and is_number(after):
        change = f"{after - before:+,}" if after != before else "0"
    return figure_text(before), figure_text(after), change


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def figure_text(value: Any) -> str:
    if value is None:
        return ""
    text = (
        f"{value:,}" if is_number(value) else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )
    text = safe_text(text, None)
    return text if len(text) <= _LONGEST_FIGURE else f"{text[:_LONGEST_FIGURE]}…"


def job_view(job: int, using: str) -> JobView:
    """Returns the job with the ID ``job``. Raises ``UnknownJob`` if there is no such job."""
    row = Job.objects.using(using).filter(pk=job).first()
    if row is None:
        raise UnknownJob(f"There is no job {job}. manage.py jobs lists them.")
    return view_of(row, database_now(using), killed_jobs(using))


def job_views(limit: int, using: str) -> list[JobView]:
    """Returns the newest ``limit`` jobs, sorted: running jobs first, then waiting jobs, then other jobs."""
    killed = killed_jobs(using)
    rows = list(Job.objects.using(using).order_by("-pk")[:limit])
    # The sort is stable, so jobs with the same place stay newest first.
    rows.sort(key=lambda job: _FIRST.get(JobState(job.state), 2))
    as_of = database_now(using)
    return [view_of(job, as_of, killed) for job in rows]


def view_of(job: Job, as_of: datetime, killed: Collection[int] = ()) -> JobView:
    """Returns the `JobView` of a job, which has the texts and figures that pages and commands show.

    ``as_of`` is the database's time. ``killed`` has the IDs of the running jobs that no process works on.
    """
    return JobView(job, as_of, job.pk in killed and job.state == JobState.RUNNING)


def progress_text(job: Job) -> str:
    """Returns a text with stage, amount done, total, rate and remaining time.

    The text is empty if the job waits, or if it has not yet reported any progress.
    """
    if job.state == JobState.QUEUED or not (job.stage or job.done):
        return ""
    text = f"{job.stage}: " if job.stage else ""
    text += done_of(job.done, job.total, job.unit)
    rate = rate_of(job.done, job.rate, job.started_at, job.finished_at)
    text += f", {rate:,.0f}/s" if rate else ""
    left = job.seconds_left
    text += f", {duration(left)} left" if left is not None else ""
    return text + (", asked to end" if job.cancel_asked_by and job.state == JobState.RUNNING else "")
