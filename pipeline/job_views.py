"""Jobs as people see them: in the terminal and in the admin, with the same words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.jobs import killed_jobs
from pipeline.models import Job, JobState
from streams.terminal import printable

__all__ = ["JobView", "job_views", "progress_text", "view_of"]

#: What is at work comes first, then what waits, then the newest.
_FIRST = {JobState.RUNNING: 0, JobState.QUEUED: 1}
KILLED = "killed"


@dataclass(frozen=True, slots=True)
class JobView:
    """One job; ``word`` is its state, but for a running one that no process works on: ``killed``."""

    id: int
    kind: str
    word: str
    arguments: dict[str, Any]
    asked_by: str
    progress: str
    seconds_left: float | None
    error: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    summary: dict[str, Any] | None
    queued_at: datetime | None
    began_at: datetime | None
    ended_at: datetime | None

    @property
    def seconds(self) -> float | None:
        """How long it took, or has taken so far."""
        if self.began_at is None:
            return None
        return ((self.ended_at or datetime.now(UTC)) - self.began_at).total_seconds()

    @property
    def took(self) -> str:
        """The same as hours, minutes and seconds."""
        return str(timedelta(seconds=round(self.seconds))) if self.seconds is not None else ""

    def cells(self) -> list[str]:
        """Job, kind, state, progress, asked by, began, took: one line of a terminal."""
        began = self.began_at.strftime("%Y-%m-%d %H:%M:%S") if self.began_at else ""
        return [
            str(self.id),
            printable(self.kind),
            self.word,
            self.progress,
            printable(self.asked_by),
            began,
            self.took,
        ]

    def as_json(self) -> dict[str, Any]:
        """For scripts: times in ISO form."""
        times = {name: getattr(self, name) for name in ("queued_at", "began_at", "ended_at")}
        return {
            "job": self.id, "kind": self.kind, "state": self.word, "arguments": self.arguments, "asked_by": self.asked_by,
            "progress": self.progress, "seconds_left": self.seconds_left, "error": self.error, "before": self.before,
            "after": self.after, "summary": self.summary,
            **{name: at.isoformat() if at else None for name, at in times.items()},
        }  # fmt: skip


def job_views(limit: int, using: str) -> list[JobView]:
    """The newest jobs, those at work first."""
    killed = killed_jobs(using)
    rows = list(Job.objects.using(using).order_by("-pk")[:limit])
    rows.sort(key=lambda job: _FIRST.get(JobState(job.state), 2))
    return [view_of(job, killed) for job in rows]


def view_of(job: Job, killed: Collection[int] = ()) -> JobView:
    """A row as people see it."""
    is_killed = job.pk in killed and job.state == JobState.RUNNING
    return JobView(
        id=job.pk, kind=job.kind, word=KILLED if is_killed else job.state, arguments=job.arguments, asked_by=job.asked_by,
        progress=progress_text(job), seconds_left=None if is_killed else job.seconds_left, error=job.error,
        before=job.before, after=job.after, summary=job.summary,
        queued_at=job.queued_at, began_at=job.started_at, ended_at=job.finished_at,
    )  # fmt: skip


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
