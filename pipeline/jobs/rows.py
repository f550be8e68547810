"""Jobs as rows, and the lock that tells a job at work from one that was killed (driver, with Django).

The lock is a session lock of a connection that lives as long as the process; a job in state ``running`` without it is dead.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from django.db import DataError, connections, transaction
from django.db.models import F
from django.db.models.functions import Now

from pipeline.errors import UnknownJob, UnusableArguments
from pipeline.jobs.sql import KILLED_JOBS
from pipeline.models import Job, JobState
from streams.db.driver import DatabaseError, direct_connection
from streams.db.schema_mark import marked_lock
from streams.maintenance.subjects import asked_by

__all__ = [
    "CancelOutcome",
    "JobLock",
    "abandoned_jobs",
    "at_work_here",
    "begin_job",
    "cancel_job",
    "close_killed",
    "end_cancelled_job",
    "end_run",
    "hold_lock",
    "killed_jobs",
    "resumable_job",
    "show_progress",
    "storable_arguments",
]

_KEY = marked_lock("'replsite.job:' || %s::text")
_LOCK = f"SELECT pg_try_advisory_lock({_KEY})"
_UNLOCK = f"SELECT pg_advisory_unlock({_KEY})"
_ASK_TO_END = """
UPDATE pipeline_job SET cancel_asked_by = %(by)s, updated_at = clock_timestamp(),
    state = CASE WHEN state = 'queued' THEN 'cancelled' ELSE state END,
    finished_at = CASE WHEN state = 'queued' THEN clock_timestamp() END
WHERE id = %(job)s AND state IN ('queued', 'running') RETURNING state
"""


class JobLock:
    """A connection whose life is the process's: it holds the locks of the jobs that this process works on."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def take(self, job: int) -> bool:
        """Whether the job is this process's now; False when a living process has it."""
        with self._connection.cursor() as cursor:
            cursor.execute(_LOCK, [job])
            return bool(cursor.fetchone()[0])

    def is_held(self) -> bool:
        """Whether what was taken is still ours: the locks go with the connection, whoever ended it."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("SELECT")
        except DatabaseError:
            return False
        return True

    def give_back(self, job: int) -> None:
        """Let go of a job that was only looked at."""
        with self._connection.cursor() as cursor:
            cursor.execute(_UNLOCK, [job])


@contextmanager
def hold_lock(using: str) -> Iterator[JobLock]:
    """A lock for the length of the block."""
    connection = direct_connection(using, application_name="replsite job")
    try:
        yield JobLock(connection)
    finally:
        connection.close()


@contextmanager
def storable_arguments() -> Iterator[None]:
    """Raises ``UnusableArguments`` where the row that the block writes cannot hold the arguments of a job."""
    try:
        yield
    except DataError as error:
        raise UnusableArguments(
            "The arguments hold a character that JSON in PostgreSQL cannot: NUL or half of a pair."
        ) from error


def at_work_here() -> dict[str, Any]:
    """What the row of a job says of this process, once that works on it."""
    return {"state": JobState.RUNNING, "host": socket.gethostname(), "process_id": os.getpid(), "updated_at": Now()}


def begin_job(lock: JobLock, kind: str, arguments: Mapping[str, Any], using: str) -> Job:
    """A new job of this process. Nobody sees its row before its lock is held: it would pass for a killed one.

    Raises ``UnusableArguments``.
    """
    row = Job(kind=kind, arguments=dict(arguments), asked_by=asked_by(), started_at=Now(), **at_work_here())
    with storable_arguments(), transaction.atomic(using=using):
        row.save(using=using, force_insert=True)
        lock.take(row.pk)
    return row


def resumable_job(lock: JobLock, kind: str, arguments: Mapping[str, Any], using: str) -> Job | None:
    """The newest job that ended early with these very arguments, now this process's; None when there is none."""
    ended = Job.objects.using(using).filter(kind=kind, arguments=dict(arguments))
    for job in ended.filter(state__in=[JobState.RUNNING, JobState.FAILED]).order_by("-pk"):
        if lock.take(job.pk):
            kept = Job.objects.using(using).filter(pk=job.pk).update(error="", finished_at=None, **at_work_here())
            if kept:  # else its row was removed meanwhile, because it is old
                job.refresh_from_db(using=using)  # it is this process's from now on
                return job
            lock.give_back(job.pk)
    return None


def abandoned_jobs(lock: JobLock, kind: str, keep: Sequence[int], using: str) -> list[int]:
    """Jobs that are not done and that no process works on; those that were killed are marked as failed.

    The lock keeps them, so that nobody resumes one whose tables are about to go. A queued one that was killed is left to
    ``runjobs``, which begins it again.
    """
    found = []
    unfinished = Job.objects.using(using).filter(kind=kind, state__in=[JobState.RUNNING, JobState.FAILED])
    unfinished = unfinished.exclude(state=JobState.RUNNING, queued_at__isnull=False)
    for job in unfinished.exclude(pk__in=keep):
        if lock.take(job.pk):
            killed = Job.objects.using(using).filter(pk=job.pk, state=JobState.RUNNING)
            killed.update(state=JobState.FAILED, error="killed", finished_at=Now(), updated_at=Now())
            found.append(job.pk)
    return found


def close_killed(lock: JobLock, using: str, **which: Any) -> int:
    """Mark killed jobs that ``which`` (a filter) names as failed, at the time of their last sign of life; returns how many.

    One of the queue that was killed is left to ``runjobs``, which begins it again.
    """
    closed = 0
    killed = Job.objects.using(using).filter(state=JobState.RUNNING, queued_at__isnull=True, pk__in=killed_jobs(using))
    for job in killed.filter(**which).values_list("pk", flat=True):
        if not lock.take(job):
            continue  # it is being resumed
        try:
            one = Job.objects.using(using).filter(pk=job, state=JobState.RUNNING, queued_at__isnull=True)
            closed += one.update(state=JobState.FAILED, error="killed", finished_at=F("updated_at"))
        finally:
            lock.give_back(job)
    return closed


def show_progress(job: int, using: str, **values: Any) -> None:
    """Write stage, done, total and rate into the job's row, for whoever looks at it."""
    Job.objects.using(using).filter(pk=job).update(updated_at=Now(), **values)


def end_run(job: Job, using: str, **values: Any) -> bool:
    """Write into the row how this run of the job ended; False when the job is somebody else's by now, and nothing was written."""
    own = Job.objects.using(using).filter(pk=job.pk, state=JobState.RUNNING, host=job.host, process_id=job.process_id)
    return bool(own.filter(attempts=job.attempts).update(updated_at=Now(), **values))


def killed_jobs(using: str) -> set[int]:
    """Jobs that their rows call running, and that no process works on."""
    with connections[using].cursor() as cursor:
        cursor.execute(KILLED_JOBS)
        return {row[0] for row in cursor.fetchall()}


class CancelOutcome(StrEnum):
    """What became of the wish to end a job."""

    CANCELLED = "cancelled"
    ASKED = "asked to end"
    OVER = "over already"


def cancel_job(job: int, by: str, using: str) -> CancelOutcome:
    """End a job that waits, or whose process was killed; ask one at work to stop at its next step.

    Raises ``UnknownJob``.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_ASK_TO_END, {"job": job, "by": by})
        row = cursor.fetchone()
    if row is None:
        if not Job.objects.using(using).filter(pk=job).exists():
            raise UnknownJob(f"There is no job {job}. manage.py jobs lists them.")
        return CancelOutcome.OVER
    if row[0] == JobState.CANCELLED:
        return CancelOutcome.CANCELLED
    if job not in killed_jobs(using):
        return CancelOutcome.ASKED
    end_cancelled_job(job, using)
    return CancelOutcome.CANCELLED


def end_cancelled_job(job: int, using: str) -> None:
    """The job has stopped because somebody asked for it; what it has done stays."""
    running = Job.objects.using(using).filter(pk=job, state=JobState.RUNNING)
    running.update(state=JobState.CANCELLED, finished_at=Now(), updated_at=Now())
