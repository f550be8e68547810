"""Carrying out jobs: what a kind of job is, and one run of it with progress, figures before and after, and an end when asked.

A command runs a job at once (``run_job``); the admin and other services queue one (``queue_job``) for ``manage.py runjobs``. Both
take the same way, so a job looks the same wherever it was asked for. A kind does its work in small transactions and counts after
each, outside of it: a count is where a job ends when somebody cancels it. Work must be good to be run again after it was killed.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from django.db import connections, transaction
from django.db.models.functions import Now

from pipeline.errors import JobCancelled, UnknownJob
from pipeline.jobs import JobLock, begin_job, end_cancelled_job, fail_job, finish_job, hold_lock, show_progress
from pipeline.models import Job, JobState
from pipeline.progress import Progress
from streams.conf import stream_settings
from streams.logs import get_logger

__all__ = ["QUEUE_CHANNEL", "Count", "JobKind", "JobRun", "carry_out", "job_kinds", "queue_job", "register", "run_job"]

log = get_logger(__name__)
QUEUE_CHANNEL = "replsite_jobs"
_LOOK_SECONDS = 1.0


class JobKind(Protocol):
    """A kind of job. Its name is what a person reads: ``censor``, ``purge history``."""

    help: str

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments with all defaults filled in; raises ``UnusableArguments``. Reads nothing."""

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Do the work; returns the summary, as JSON can hold it."""


_kinds: dict[str, JobKind] = {}


def register(name: str, kind: JobKind) -> None:
    """Make a kind known, while Django loads the room that has it."""
    _kinds[name] = kind


def job_kinds() -> Mapping[str, JobKind]:
    """All kinds by name."""
    return dict(sorted(_kinds.items()))


def _kind(name: str) -> JobKind:
    if name not in _kinds:
        raise UnknownJob(f"There is no kind of job {name!r}; there are: {', '.join(sorted(_kinds)) or 'none'}.")
    return _kinds[name]


class Count:
    """How much of a stage is done. Adding to it is a step: there a job ends when somebody has asked for it."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._done = 0

    def __call__(self) -> int:
        """What is done so far; asked from another thread."""
        return self._done

    def add(self, number: int = 1) -> None:
        """So much more is done, and committed. Raises ``JobCancelled``."""
        self._done += number
        self._run.step()


class JobRun:
    """A job at work in this process, as its kind sees it."""

    def __init__(self, job: Job, using: str, stream: TextIO) -> None:
        self.id = job.pk
        self.arguments: Mapping[str, Any] = job.arguments
        self.using = using
        self._progress = Progress(stream, self._store)
        self._unit = ""
        self._looked = time.monotonic()

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str) -> Iterator[Count]:
        """One part of the work, told with its rate and the time left."""
        count = Count(self)
        self._unit = unit
        with self._progress.stage(name, total, unit, count):
            yield count

    @contextmanager
    def watch(self, name: str, total: int | None, unit: str, done: Callable[[], int]) -> Iterator[None]:
        """The same where somebody else does the work: ``done`` is asked now and then, in another thread."""
        self._unit = unit
        with self._progress.stage(name, total, unit, done):
            yield
        self.step()

    def step(self) -> None:
        """Raises ``JobCancelled`` when somebody wants the end; looks once a second at most."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        by = Job.objects.using(self.using).values_list("cancel_asked_by", flat=True).get(pk=self.id)
        if by:
            raise JobCancelled(f"Cancelled by {by}. What was done stays; the job can be run again.")

    def say(self, text: str) -> None:
        """A line for whoever watches."""
        self._progress.say(text)

    def note_before(self, figures: Mapping[str, Any]) -> None:
        """Figures before the work; a job that goes on after it was killed keeps its first ones."""
        Job.objects.using(self.using).filter(pk=self.id, before__isnull=True).update(before=dict(figures))

    def note_after(self, figures: Mapping[str, Any]) -> None:
        """The same figures after it."""
        show_progress(self.id, self.using, after=dict(figures))

    def _store(self, stage: str, done: int, total: int | None, rate: float | None) -> None:
        show_progress(self.id, self.using, stage=stage, done=done, total=total, rate=rate, unit=self._unit)


def run_job(
    name: str, arguments: Mapping[str, Any], using: str | None = None, stream: TextIO | None = None
) -> Mapping[str, Any]:
    """Run a job now, in this process; returns its summary.

    Raises ``UnknownJob``, ``UnusableArguments``, ``JobCancelled``, and what the work raises; the row tells it as well.
    """
    alias = using or stream_settings().database
    checked = _kind(name).check(arguments)
    with hold_lock(alias) as lock:
        return carry_out(begin_job(lock, name, checked, alias), alias, stream or sys.stderr)


def queue_job(name: str, arguments: Mapping[str, Any], by: str, using: str | None = None) -> Job:
    """Leave a job for ``manage.py runjobs``. Raises ``UnknownJob`` and ``UnusableArguments``."""
    alias = using or stream_settings().database
    checked = _kind(name).check(arguments)
    with transaction.atomic(using=alias):
        job = Job.objects.using(alias).create(
            kind=name, arguments=dict(checked), asked_by=by, state=JobState.QUEUED, queued_at=Now()
        )
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [QUEUE_CHANNEL, str(job.pk)])
    return job


Work = Callable[[JobRun], Mapping[str, Any]]


def carry_out(job: Job, using: str, stream: TextIO, work: Work | None = None) -> Mapping[str, Any]:
    """Do the work of a job whose lock this process holds (its kind's, if not told), and write into its row how it ended."""
    log.info("job.began", job=job.pk, kind=job.kind, asked_by=job.asked_by)
    try:
        summary = (work or _kind(job.kind).run)(JobRun(job, using, stream))
    except JobCancelled as error:
        end_cancelled_job(job.pk, using)
        log.warning("job.cancelled", job=job.pk, kind=job.kind, why=str(error))
        raise
    except BaseException as error:
        log.error("job.failed", job=job.pk, kind=job.kind, error=str(error) or type(error).__name__)
        fail_job(job.pk, str(error) or type(error).__name__, using)
        raise
    finish_job(job.pk, summary, using)
    log.info("job.done", job=job.pk, kind=job.kind)
    return summary


def take_over(lock: JobLock, job: int, using: str) -> Job | None:
    """Make a queued job this process's own and running; null when another has it."""
    if not lock.take(job):
        return None
    queued = Job.objects.using(using).filter(pk=job, state=JobState.QUEUED)
    host, process = socket.gethostname(), os.getpid()
    if not queued.update(state=JobState.RUNNING, host=host, process_id=process, started_at=Now(), updated_at=Now()):
        lock.give_back(job)
        return None
    return Job.objects.using(using).get(pk=job)
