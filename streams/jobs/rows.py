"""Reads and writes the rows of jobs, and holds their locks. Never runs in Spark's executors. Needs Django.

Each running job has an advisory lock. The process that works on the job holds this lock, in a database session that
ends with the process. So if a job has the state ``running`` and its lock is free, the job was killed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any

from django.db import DataError, connections, transaction
from django.db.models import Case, F, TextField, Value, When
from django.db.models.functions import Now

from streams.db.driver import DatabaseError, direct_connection
from streams.db.schema_mark import marked_lock
from streams.jobs.errors import UnknownJob, UnusableArguments
from streams.jobs.models import Job, JobState
from streams.jobs.sql import KILLED_JOBS
from streams.runtime.command_line import asked_by

_KEY = marked_lock("'replsite.job:' || %s::text")
_LOCK = f"SELECT pg_try_advisory_lock({_KEY})"
_UNLOCK = f"SELECT pg_advisory_unlock({_KEY})"
_LOCK_UNTIL_COMMIT = f"SELECT pg_try_advisory_xact_lock({_KEY})"
#: Cancels a job that no process works on: a waiting job, or a killed job, whose lock is free (``free``). If a process works on
#: the job, only stores the request.
_ASK_TO_END = """
UPDATE pipeline_job SET cancel_asked_by = %(by)s, updated_at = clock_timestamp(),
    state = CASE WHEN state = 'queued' OR %(free)s THEN 'cancelled' ELSE state END,
    finished_at = CASE WHEN state = 'queued' OR %(free)s THEN clock_timestamp() END
WHERE id = %(job)s AND state IN ('queued', 'running') RETURNING state
"""


class JobLock:
    """A database connection that holds the locks of the jobs that this process works on.

    If the process is killed, PostgreSQL ends the connection and so releases the locks.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def acquire(self, job: int) -> bool:
        """Acquires the job's lock for this process, without waiting. Returns false if another session holds the lock."""
        with self._connection.cursor() as cursor:
            cursor.execute(_LOCK, [job])
            return bool(cursor.fetchone()[0])

    def is_held(self) -> bool:
        """Returns true while the connection exists. When the connection ends, PostgreSQL releases all its locks."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("SELECT")
        except DatabaseError:
            return False
        return True

    def release(self, job: int) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(_UNLOCK, [job])


@contextmanager
def hold_lock(using: str) -> Iterator[JobLock]:
    """Opens a connection for the locks of jobs. Releases the locks and closes the connection at the end of the block."""
    connection = direct_connection(using, application_name="replsite job")
    try:
        yield JobLock(connection)
    finally:
        # The server ends a session some time after its connection was closed. Until then a job that failed could not be resumed:
        # its lock would not be free, and a new job would begin.
        with suppress(DatabaseError), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock_all()")
        connection.close()


@contextmanager
def storable_arguments() -> Iterator[None]:
    """Raises ``UnusableArguments`` if PostgreSQL cannot store the arguments in a job's row, which the block writes."""
    try:
        yield
    except DataError as error:
        raise UnusableArguments(
            "The arguments hold a character that JSON in PostgreSQL cannot: NUL or half of a pair."
        ) from error


def at_work_here() -> dict[str, Any]:
    """Returns the values that mark a job's row as running in this process: column -> value.

    The columns are state, host, process ID and time of update.
    """
    return {"state": JobState.RUNNING, "host": socket.gethostname(), "process_id": os.getpid(), "updated_at": Now()}


def begin_job(lock: JobLock, kind: str, arguments: Mapping[str, Any], using: str) -> Job:
    """Inserts the row of a new job that this process runs, and takes the lock of the job.

    Raises ``UnusableArguments``.
    """
    row = Job(kind=kind, arguments=dict(arguments), asked_by=asked_by(), started_at=Now(), **at_work_here())
    # The lock is taken before the commit. In the other order: A inserts the row and commits, B sees a running job whose
    # lock is free, takes the job for a killed job and marks it as failed.
    with storable_arguments(), transaction.atomic(using=using):
        row.save(using=using, force_insert=True)
        lock.acquire(row.pk)
    return row


def claim_resumable_job(lock: JobLock, kind: str, arguments: Mapping[str, Any], using: str) -> Job | None:
    """Takes over the newest failed or killed job that has exactly this kind and these arguments. Takes the job's lock.

    Returns the job, or None if there is no such job. If a user asked the earlier run of the job to stop, removes this
    request from the job's row.
    """
    ended = Job.objects.using(using).filter(kind=kind, arguments=dict(arguments))
    ended = ended.filter(state__in=[JobState.RUNNING, JobState.FAILED])
    for job in ended.order_by("-pk"):
        if lock.acquire(job.pk):
            # A lists the job and takes its lock. B then asks to cancel the job, and finds that a process works on it.
            # So A clears a request only if it was there when A listed the job. Because of B's request, A ends at its
            # next step.
            asked = Case(
                When(cancel_asked_by=job.cancel_asked_by, then=Value("", TextField())), default=F("cancel_asked_by")
            )
            values = {"error": "", "finished_at": None, "cancel_asked_by": asked, **at_work_here()}
            # Filtered by state again: between the list and the lock the job may have been removed, cancelled, or done.
            if ended.filter(pk=job.pk).update(**values):
                job.refresh_from_db(using=using)  # while the lock is held, no other process takes the job over
                return job
            lock.release(job.pk)
    return None


def claim_abandoned_jobs(lock: JobLock, kind: str, keep: Sequence[int], using: str) -> list[int]:
    """Returns the IDs of the failed and killed jobs of a kind that no process works on. Leaves out the jobs in ``keep``.

    Marks the killed ones among these jobs as failed. Takes the lock of each returned job, and does not release it. So
    no other process resumes a job whose tables the caller is about to drop. A killed job that was queued is left out,
    because ``runjobs`` runs it again.
    """
    found = []
    unfinished = Job.objects.using(using).filter(kind=kind, state__in=[JobState.RUNNING, JobState.FAILED])
    unfinished = unfinished.exclude(state=JobState.RUNNING, queued_at__isnull=False)
    for job in unfinished.exclude(pk__in=keep):
        if lock.acquire(job.pk):
            killed = Job.objects.using(using).filter(pk=job.pk, state=JobState.RUNNING)
            killed.update(state=JobState.FAILED, error="killed", finished_at=Now(), updated_at=Now())
            found.append(job.pk)
    return found


def close_killed(lock: JobLock, using: str, **which: Any) -> int:
    """Marks killed jobs as failed. Sets the end of each job to the time of its last update. Returns the number of jobs.

    ``which`` has conditions for Django's ``filter``, which limit the jobs. A killed job that was queued is left out,
    because ``runjobs`` runs it again.
    """
    closed = 0
    killed = Job.objects.using(using).filter(state=JobState.RUNNING, queued_at__isnull=True, pk__in=killed_jobs(using))
    for job in killed.filter(**which).values_list("pk", flat=True):
        if not lock.acquire(job):
            continue  # a process is resuming it
        try:
            # Filtered by state again: the job may have been resumed and done between the list and the lock.
            row = killed.filter(pk=job)
            closed += row.update(state=JobState.FAILED, error="killed", finished_at=F("updated_at"))
        finally:
            lock.release(job)
    return closed


def show_progress(job: int, using: str, **values: Any) -> None:
    Job.objects.using(using).filter(pk=job).update(updated_at=Now(), **values)


def end_run(job: Job, using: str, **values: Any) -> bool:
    """Writes the outcome of this run into the job's row.

    Returns true if the outcome is written. Writes nothing and returns false if another run has taken the job over, or
    if the job is no longer in the state ``running``.
    """
    # Host, process and attempt name this run. A loses its lock, B begins the job, A ends: A's update must match no row.
    run = Job.objects.using(using).filter(pk=job.pk, state=JobState.RUNNING, host=job.host, process_id=job.process_id)
    return bool(run.filter(attempts=job.attempts).update(updated_at=Now(), **values))


def killed_jobs(using: str) -> set[int]:
    with connections[using].cursor() as cursor:
        cursor.execute(KILLED_JOBS)
        return {row[0] for row in cursor.fetchall()}


def is_resumable(job: Job, killed: Container[int]) -> bool:
    """Returns true for a job that failed, was cancelled, or was killed. ``killed`` are the IDs of the killed jobs."""
    return job.state in (JobState.FAILED, JobState.CANCELLED) or job.pk in killed


def queue_again(job: int, using: str) -> bool:
    """Puts a failed, cancelled or killed job back into the queue. Does nothing and returns false for any other job.

    Must be called in a transaction.
    """
    with connections[using].cursor() as cursor:
        # The lock is held until the commit. Without it: A finds that the job failed, B resumes it by its command, A queues
        # it, and a server of the queue runs it a second time beside B.
        cursor.execute(_LOCK_UNTIL_COMMIT, [job])
        (free,) = cursor.fetchone()
    # While the lock is free, a job in state ``running`` was killed.
    over = Job.objects.using(using).filter(pk=job, state__in=[JobState.FAILED, JobState.CANCELLED, JobState.RUNNING])
    values: dict[str, Any] = {"error": "", "stage": "", "finished_at": None, "cancel_asked_by": "", "attempts": 0}
    return bool(free and over.update(state=JobState.QUEUED, queued_at=Now(), updated_at=Now(), **values))


class CancelOutcome(StrEnum):
    """The result of a request to cancel a job."""

    CANCELLED = "cancelled"
    ASKED = "asked to end"
    OVER = "over already"


def cancel_job(job: int, by: str, using: str) -> CancelOutcome:
    """Cancels a waiting or killed job at once. Asks a running job to stop at its next step.

    ``by`` is the user who asks. Raises ``UnknownJob``.
    """
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        # The lock is held until the commit. Without it: A finds that the job was killed, B resumes it, A marks it as cancelled,
        # and B goes on with a job that is over.
        cursor.execute(_LOCK_UNTIL_COMMIT, [job])
        (free,) = cursor.fetchone()
        cursor.execute(_ASK_TO_END, {"job": job, "by": by, "free": free})
        row = cursor.fetchone()
    if row is None:
        if not Job.objects.using(using).filter(pk=job).exists():
            raise UnknownJob(f"There is no job {job}. manage.py jobs lists them.")
        return CancelOutcome.OVER
    # The process of a job at work reads ``cancel_asked_by`` at its next step.
    return CancelOutcome.CANCELLED if row[0] == JobState.CANCELLED else CancelOutcome.ASKED
