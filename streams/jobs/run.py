"""Runs jobs, with progress, figures before and after, and cancellation.

A command runs a job at once (``run_job``). The admin and other services queue a job (``queue_job``) for ``manage.py
runjobs``. Both ways run the same code, so the result of a job does not depend on how it was started.

The work must be repeatable, because a killed job is run again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO

from django.db import Error as DjangoError
from django.db import IntegrityError, connections, transaction
from django.db.models import F
from django.db.models.functions import Now

from streams.conf import stream_settings
from streams.db.driver import channel, past_pooler
from streams.jobs.arguments import DRY_RUN
from streams.jobs.counts import count_rows
from streams.jobs.errors import (
    CarriedOut,
    JobCancelled,
    JobInterrupted,
    JobLost,
    NotResumable,
    QueueFull,
    UnknownJob,
    UnusableArguments,
)
from streams.jobs.job_run import JobRun, ProcessLink
from streams.jobs.models import Job, JobState
from streams.jobs.operation import find_operation
from streams.jobs.rows import (
    JobLock,
    at_work_here,
    begin_job,
    claim_resumable_job,
    close_killed,
    end_run,
    hold_lock,
    queue_again,
    storable_arguments,
)
from streams.runtime.logs import get_logger
from streams.runtime.masking import masked

__all__ = [
    "MOST_QUEUED",
    "QUEUE_CHANNEL",
    "carry_out",
    "check_arguments",
    "claim_queued_job",
    "queue_job",
    "resume_job",
    "run_job",
]

log = get_logger(__name__)
QUEUE_CHANNEL = "replsite_jobs"
MOST_QUEUED = 1_000
"""The largest number of waiting jobs. If so many jobs wait, ``queue_job`` raises ``QueueFull``."""
_MOST_OF_ARGUMENTS = 100_000
_WHY: Mapping[type[BaseException], str] = {
    KeyboardInterrupt: "Interrupted. What was done stays; the job can be run again."
}


def check_arguments(name: str, arguments: Mapping[str, Any], using: str) -> Mapping[str, Any]:
    """Checks the arguments of a job of the kind ``name``. Returns the arguments with all defaults filled in.

    Raises ``UnknownKind``, ``UnusableArguments``, and the errors of the operation's ``look``.
    """
    found = find_operation(name)
    checked = found.check(arguments)
    found.look(checked, using)
    return checked


Work = Callable[[JobRun], Mapping[str, Any]]


def run_job(
    name: str,
    arguments: Mapping[str, Any],
    using: str | None = None,
    stream: TextIO | None = None,
    *,
    resume: bool = False,
    work: Work | None = None,
) -> Mapping[str, Any]:
    """Runs a job now, in this process. Returns its summary.

    ``using`` defaults to the database of the streams. ``stream`` is the output for progress, by default standard error.
    If ``resume`` is true, continues the newest failed or killed job that has the same kind and arguments, if there is
    such a job. ``work`` is called in place of the work of the kind.

    Raises the errors of ``check_arguments`` before the job begins. While the job runs, raises ``JobCancelled``,
    ``JobLost`` and the errors of the work. Errors of the work are also stored in the job's row.
    """
    alias = using or stream_settings().database
    checked = check_arguments(name, arguments, alias)
    with hold_lock(alias) as lock:
        ended = claim_resumable_job(lock, name, checked, alias) if resume else None
        job = ended or begin_job(lock, name, checked, alias)
        summary = carry_out(job, alias, stream or sys.stderr, work, ProcessLink(lock))
        # This run has done the work of killed jobs with the same arguments, so no such job is to be resumed.
        close_killed(lock, alias, kind=name, arguments=dict(checked))
        return summary


def queue_job(
    name: str, arguments: Mapping[str, Any], by: str, using: str | None = None, *, confirmed_from: int | None = None
) -> Job:
    """Queues a job for ``manage.py runjobs``. Processes of ``runjobs`` are notified when the caller's transaction commits.

    ``by`` is the user who queues the job. ``confirmed_from`` is the ID of the dry run that this job carries out. A dry
    run can be carried out only once.

    Raises the errors of ``check_arguments``, ``UnusableArguments`` if the arguments are too long, ``QueueFull``, and
    ``CarriedOut`` if the dry run was carried out before.
    """
    alias = using or stream_settings().database
    checked = check_arguments(name, arguments, alias)
    if len(json.dumps(dict(checked))) > _MOST_OF_ARGUMENTS:
        raise UnusableArguments(f"The arguments are longer than {_MOST_OF_ARGUMENTS:,} characters of JSON.")
    _check_queue(alias)
    job = Job(kind=name, arguments=dict(checked), asked_by=by, confirmed_from=confirmed_from)
    job.state, job.queued_at = JobState.QUEUED, Now()
    with transaction.atomic(using=alias):
        try:
            with storable_arguments(), transaction.atomic(using=alias):
                job.save(using=alias, force_insert=True)
        except IntegrityError as error:
            raise CarriedOut(f"Dry run {confirmed_from} was confirmed already, and is carried out once.") from error
        _notify(job.pk, alias)
    return job


def resume_job(job: int, by: str, using: str | None = None) -> Job:
    """Queues a failed, cancelled or killed job again, with the same arguments. Returns the job's row.

    The job continues where it ended, if its kind of job can do this. ``by`` is the user who resumes the job.

    Raises ``UnknownJob`` if there is no such job, ``NotResumable`` if the job is in another state, ``QueueFull``, and
    the errors of ``check_arguments``. The arguments are checked again, because the job may have been started by a
    command, which may use arguments that a queued job may not, such as any folder.
    """
    alias = using or stream_settings().database
    row = Job.objects.using(alias).filter(pk=job).first()
    if row is None:
        raise UnknownJob(f"There is no job {job}. manage.py jobs lists them.")
    if not isinstance(row.arguments, dict):
        raise UnusableArguments(f"The arguments of job {job} are no JSON object. Queue another one.")
    check_arguments(row.kind, row.arguments, alias)
    _check_queue(alias)
    with transaction.atomic(using=alias):
        if not queue_again(job, alias):
            row.refresh_from_db(using=alias)
            raise NotResumable(
                f"Job {job} is {row.state}. Only a job that failed, was cancelled or was killed can be resumed."
            )
        _notify(job, alias)
    log.info("job.resumed", job=job, kind=row.kind, by=by)
    row.refresh_from_db(using=alias)
    return row


def _check_queue(using: str) -> None:
    # Counted without a lock: callers that queue at the same time may exceed the limit by a few jobs.
    if Job.objects.using(using).filter(state=JobState.QUEUED).count() >= MOST_QUEUED:
        raise QueueFull(f"{MOST_QUEUED:,} jobs wait already. Let manage.py runjobs work, or cancel some of them.")


def _notify(job: int, using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel(cursor, QUEUE_CHANNEL), str(job)])


def carry_out(
    job: Job, using: str, stream: TextIO, work: Work | None = None, keeper: ProcessLink | None = None
) -> Mapping[str, Any]:
    """Does the work of a job whose lock this process holds, and writes the outcome into the job's row.

    Returns the summary. ``work`` is called in place of the work of the kind. Raises the errors of the work. Raises
    ``JobLost`` if another process has begun the job meanwhile. In this case no outcome is written, because the job's
    row now describes the run of the other process.
    """
    keeper = keeper or ProcessLink()
    log.info("job.began", job=job.pk, kind=job.kind, asked_by=job.asked_by)
    try:
        with past_pooler(using):
            run = JobRun(job, using, stream, keeper)
            if work is None:
                found = find_operation(job.kind)
                work = found.plan if run.arguments.get(DRY_RUN) else found.run
            summary = work(run)
        _finish(job, using, {**summary, **{name: found for name, found in run.also.items() if found}})
    except JobCancelled as error:
        end_run(job, using, state=JobState.CANCELLED, finished_at=Now())
        log.warning("job.cancelled", job=job.pk, kind=job.kind, why=str(error))
        raise
    except JobInterrupted as error:
        with transaction.atomic(using=using):
            # This run does not count as an attempt, because the job did not fail.
            end_run(job, using, state=JobState.QUEUED, stage="", attempts=F("attempts") - 1)
            _notify(job.pk, using)
        log.warning("job.interrupted", job=job.pk, kind=job.kind, why=str(error))
        raise
    except BaseException as error:
        _fail(job, using, error, keeper)
        raise
    log.info("job.done", job=job.pk, kind=job.kind)
    return summary


def _finish(job: Job, using: str, summary: Mapping[str, Any]) -> None:
    with transaction.atomic(using=using):
        if not end_run(job, using, state=JobState.DONE, summary=dict(summary), finished_at=Now(), stage="", error=""):
            raise JobLost(
                f"Job {job.pk} was done here, but another process has begun it meanwhile; its row is that one's."
            )
        count_rows(job.pk, using)


def _fail(job: Job, using: str, error: BaseException, keeper: ProcessLink) -> None:
    # A queued job whose lock was lost, for example because the database restarts, is not marked: ``requeue_killed``
    # queues it again.
    why = masked(str(error)) or _WHY.get(type(error), type(error).__name__)
    if not keeper.has_lost():
        log.error("job.failed", job=job.pk, kind=job.kind, error=why)
        end_run(job, using, state=JobState.FAILED, error=why[:2000], finished_at=Now())
        return
    log.error("job.lost", job=job.pk, kind=job.kind, error=why)
    connections[using].close()  # the cause that ended the lock's connection may have ended this one, too
    # A queued job is not marked: its row stays ``running`` without a lock, so ``requeue_killed`` queues it again.
    if job.queued_at is None:
        with suppress(DjangoError):  # if the database is away, the job will be seen as killed
            end_run(job, using, state=JobState.FAILED, error=why[:2000], finished_at=Now())


def claim_queued_job(lock: JobLock, job: int, using: str) -> Job | None:
    """Takes the lock of a queued job and marks the job as running in this process.

    Returns None if another process holds the lock, or if the job does not wait in the queue any more.
    """
    if not lock.acquire(job):
        return None
    # A lists the job. B takes it, runs it and releases the lock. A takes the lock. So A reads the state again under the lock, and
    # sees that the job is done.
    queued = Job.objects.using(using).filter(pk=job, state=JobState.QUEUED)
    # B runs the job, and a user cancels it. Before its next step B is killed or stopped, so the job is queued again. It must
    # be cancelled here, and not begun.
    asked = queued.exclude(cancel_asked_by="")
    if asked.update(state=JobState.CANCELLED, finished_at=Now(), updated_at=Now()):
        log.warning("job.cancelled", job=job, why="this was asked for before it was queued again")
        lock.release(job)
        return None
    if not queued.update(started_at=Now(), attempts=F("attempts") + 1, **at_work_here()):
        lock.release(job)
        return None
    return Job.objects.using(using).get(pk=job)
