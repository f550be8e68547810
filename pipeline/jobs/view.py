"""Jobs as people see them: in the terminal and in the admin, with the same words."""

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

#: What is at work comes first, then what waits, then the newest.
_FIRST = {JobState.RUNNING: 0, JobState.QUEUED: 1}
KILLED = "killed"
_MOST_FIGURES = 200
_LONGEST_FIGURE = 200


@dataclass(frozen=True, slots=True)
class JobView:
    """One job at ``as_of``, which is the database's time."""

    job: Job
    as_of: datetime
    is_killed: bool = False
    """Whether its row calls it running, and no process works on it."""

    @property
    def word(self) -> str:
        """Its state; ``killed`` for one that was."""
        return KILLED if self.is_killed else self.job.state

    @property
    def progress(self) -> str:
        """Stage, rate and time left."""
        return progress_text(self.job)

    @property
    def seconds(self) -> float | None:
        """How long it took, or has taken so far."""
        if self.job.started_at is None:
            return None
        return ((self.job.finished_at or self.as_of) - self.job.started_at).total_seconds()

    @property
    def took(self) -> str:
        """The same as hours, minutes and seconds."""
        return str(timedelta(seconds=round(self.seconds))) if self.seconds is not None else ""

    @property
    def figures(self) -> list[Figure]:
        """Before and after, side by side."""
        return figures_of(self.job.before, self.job.after)

    def cells(self) -> list[str]:
        """Job, kind, state, progress, asked by, began, took: one line of a terminal."""
        job = self.job
        began = job.started_at.strftime("%Y-%m-%d %H:%M:%S") if job.started_at else ""
        told = printable(job.kind), self.word, self.progress, printable(job.asked_by)
        return [str(job.pk), *told, began, self.took]

    def as_json(self) -> dict[str, Any]:
        """For scripts: times in ISO form."""
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
    """What a job counted before its work and after it, as text; ``change`` for numbers that are there twice."""

    name: str
    before: str
    after: str
    change: str


def figures_of(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[Figure]:
    """Figures side by side, those of before first; at most 200."""
    old, new = (_named(found) for found in (before, after))
    names = list(dict.fromkeys([*old, *new]))[:_MOST_FIGURES]
    return [Figure(printable(name), *_pair(old.get(name), new.get(name))) for name in names]


def _named(found: Any) -> Mapping[str, Any]:
    """JSON of another service's row may be anything."""
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
    """One job; raises ``UnknownJob``."""
    row = Job.objects.using(using).filter(pk=job).first()
    if row is None:
        raise UnknownJob(f"There is no job {job}. manage.py jobs lists them.")
    return view_of(row, database_now(using), killed_jobs(using))


def job_views(limit: int, using: str) -> list[JobView]:
    """The newest jobs, those at work first."""
    killed = killed_jobs(using)
    rows = list(Job.objects.using(using).order_by("-pk")[:limit])
    rows.sort(key=lambda job: _FIRST.get(JobState(job.state), 2))
    as_of = database_now(using)
    return [view_of(job, as_of, killed) for job in rows]


def view_of(job: Job, as_of: datetime, killed: Collection[int] = ()) -> JobView:
    """A row as people see it at ``as_of``, which is the database's time."""
    return JobView(job, as_of, job.pk in killed and job.state == JobState.RUNNING)


def progress_text(job: Job) -> str:
    """Stage, done of total, rate and time left; empty where nothing is known."""
    if job.state == JobState.QUEUED or not (job.stage or job.done):
        return ""
    text = f"{job.stage}: {job.done:,}" if job.stage else f"{job.done:,}"
    text += f" of {job.total:,}" if job.total is not None else ""
    text += f" {job.unit}" if job.unit else ""
    text += f", {job.rate:,.0f}/s" if job.rate else ""
    left = job.seconds_left
    text += f", {left:,.0f} s left" if left is not None else ""
    return text + (", asked to end" if job.cancel_asked_by and job.state == JobState.RUNNING else "")
