"""Runs jobs: kinds of job, and one run of a job with progress, figures before and after, and cancellation.

A command runs a job at once (``run_job``). The admin and other services queue a job (``queue_job``) for ``manage.py
runjobs``. Both use the same code, so a job looks the same wherever it was requested.

A kind does its work in small transactions, and calls ``Count.add`` after each of them, outside of the transaction. If
the job was cancelled, this call raises. The work must be repeatable, because a job that was killed is run again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from django.db import DatabaseError, IntegrityError, InterfaceError, connections, transaction
from django.db.models import F
from django.db.models.functions import Now

from pipeline.errors import CarriedOut, JobCancelled, JobInterrupted, JobLost, QueueFull, UnknownKind, UnusableArguments
from pipeline.jobs.arguments import DRY_RUN, Argument
from pipeline.jobs.counts import count_rows
from pipeline.jobs.progress import Progress
from pipeline.jobs.rows import (
    JobLock,
    at_work_here,
    begin_job,
    claim_resumable_job,
    close_killed,
    end_run,
    hold_lock,
    show_progress,
    storable_arguments,
)
from pipeline.models import Job, JobState
from pipeline.spark.cancellation import spark_steps
from streams.conf import stream_settings
from streams.db.driver import channel, past_pooler
from streams.runtime.logs import get_logger
from streams.runtime.masking import masked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "MOST_QUEUED",
    "QUEUE_CHANNEL",
    "Count",
    "JobKind",
    "JobRun",
    "ProcessLink",
    "carry_out",
    "check_arguments",
    "claim_queued_job",
    "job_kinds",
    "queue_job",
    "register",
    "run_job",
]

log = get_logger(__name__)
QUEUE_CHANNEL = "replsite_jobs"
MOST_QUEUED = 1_000
"""The most jobs that may wait. If as many wait, ``queue_job`` refuses another."""
_MOST_OF_ARGUMENTS = 100_000
#: A run checks whether it is to end at most once in this number of seconds.
_LOOK_SECONDS = 1.0
_WHY: Mapping[type[BaseException], str] = {
    KeyboardInterrupt: "Interrupted. What was done stays; the job can be run again."
}


class JobKind:
    """A kind of job: its arguments, its dry run and its work.

    The options of the command, the form in the admin and the check of arguments all follow from ``arguments``.
    """

    name = ""
    """The name for persons, such as ``censor`` or ``purge history``."""
    help = ""
    arguments: Sequence[Argument] | None = ()
    """Null means JSON of any form, which ``check`` examines."""
    changes_nothing = False
    staging_prefix: str | None = None
    """Names of a job's tables begin with this prefix and the job's number. While such tables exist, the job's row is kept."""

    def check(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the arguments with all defaults filled in. Raises ``UnusableArguments``. Does not query the database."""
        known = [one for one in self.arguments or () if one.stored]
        if unknown := sorted(set(given) - {one.name for one in known}):
            names = ", ".join(one.name for one in known) or "none"
            raise UnusableArguments(f"Unknown arguments: {', '.join(map(str, unknown))}. There are: {names}.")
        checked = {one.name: one.value(given) for one in known}
        self.check_together(checked)
        return {one.name: checked[one.name] for one in known if not one.omitted or checked[one.name] is not None}

    def check_together(self, checked: dict[str, Any]) -> None:
        """Raises ``UnusableArguments`` for arguments that do not go together. May fill in values that follow from others."""

    def look(self, arguments: Mapping[str, Any], using: str) -> None:
        """Raises the errors that the work would raise at its start for these checked arguments. Changes nothing.

        So a typing error is reported at once, and does not become a failed job.
        """

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """Does the dry run, which changes nothing. Returns the summary that ``run`` would return."""
        raise NotImplementedError(f"{self.name} takes no {DRY_RUN}.")

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Does the work. Returns the summary, which must fit JSON."""
        raise NotImplementedError(self.name)

    def lines(self, summary: Mapping[str, Any]) -> Iterable[str]:
        """Returns the summary as lines for a person."""
        return [json.dumps(summary)]

    def judge(self, arguments: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Raises an error if the outcome of the work is not satisfactory. Called with the summary, after the work.

        Raises ``UnusableArguments`` for names that the work has not found, and ``PipelineError`` for what is still
        wrong.
        """


_kinds: dict[str, JobKind] = {}


def register(*kinds: JobKind) -> None:
    """Registers kinds of job. Called while Django loads the apps."""
    _kinds.update({kind.name: kind for kind in kinds})


def job_kinds() -> Mapping[str, JobKind]:
    """Returns the registered kinds by name, in the order of their names."""
    return dict(sorted(_kinds.items()))


def _kind(name: str) -> JobKind:
    if name not in _kinds:
        raise UnknownKind(f"There is no kind of job {name!r}; there are: {', '.join(sorted(_kinds)) or 'none'}.")
    return _kinds[name]


def check_arguments(name: str, arguments: Mapping[str, Any], using: str) -> Mapping[str, Any]:
    """Returns the arguments of a job of this kind, with all defaults filled in.

    Raises ``UnknownKind``, ``UnusableArguments``, and the errors of the kind's ``look``.
    """
    kind = _kind(name)
    checked = kind.check(arguments)
    kind.look(checked, using)
    return checked


class Count:
    """The amount of a stage that is done. Each addition is a step of the job, so it raises if the job is to end."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._done = 0

    def __call__(self) -> int:
        """Returns the amount done so far. May be called from another thread."""
        return self._done

    def add(self, number: int = 1) -> None:
        """Adds work that is done and committed. Raises what ``JobRun.step`` does."""
        self._done += number
        self._run.step()


@dataclass(frozen=True, slots=True)
class ProcessLink:
    """The link of a run to its process.

    ``lock`` holds the lock of the job. ``stopping`` returns true if the process is to stop.
    """

    lock: JobLock | None = None
    stopping: Callable[[], bool] = lambda: False

    def has_lost(self) -> bool:
        """Returns true if the lock was lost, because its connection ended. A run without a lock cannot lose it."""
        return self.lock is not None and not self.lock.is_held()


class JobRun:
    """One run of a job in this process. A kind of job gets it for its work."""

    def __init__(self, job: Job, using: str, stream: TextIO, keeper: ProcessLink | None = None) -> None:
        if not isinstance(job.arguments, dict):
            raise UnusableArguments(f"The arguments of job {job.pk} are no JSON object. Queue another one.")
        self.id = job.pk
        self.kind: str = job.kind
        self.arguments: Mapping[str, Any] = job.arguments
        self.using = using
        self._keeper = keeper or ProcessLink()
        self._progress = Progress(stream, self._store)
        self._unit = ""
        self._looked = time.monotonic()

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str) -> Iterator[Count]:
        """Reports on one part of the work, with rate and time left. The block adds to the count that it gets.

        ``total`` is null if the total is not known.
        """
        count = Count(self)
        self._unit = unit
        with self._progress.stage(name, total, unit, count):
            yield count

    @contextmanager
    def watch(self, name: str, total: int | None, unit: str, done: Callable[[], int]) -> Iterator[None]:
        """Reports like ``stage`` on work that is done elsewhere, and calls ``step`` at its end.

        ``done`` returns the amount done. It is called at intervals in another thread.
        """
        self._unit = unit
        with self._progress.stage(name, total, unit, done):
            yield
        self.step()

    def spark_steps(self, spark: SparkSession, also: Callable[[], None] = lambda: None) -> AbstractContextManager[None]:
        """Calls ``step`` at intervals in another thread while the block waits for Spark.

        If ``step`` raises, the block's Spark tasks are cancelled and the block ends with that error. This works only
        for Spark jobs that the block's own thread starts. ``also`` is called before each ``step``, and may raise a
        ``PipelineError`` of its own, with the same effect.
        """

        def look() -> None:
            also()
            self.step()

        return spark_steps(look, spark, f"replsite job {self.id}")

    def step(self) -> None:
        """Raises ``JobCancelled``, ``JobInterrupted`` or ``JobLost`` if the work is to end. Checks at most once a second."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        # The lock is checked first. Without it another process may run the job, and a request in the row is meant for
        # that run.
        if self._keeper.has_lost():
            raise JobLost(f"Job {self.id} has lost its lock, so another process may run it now; this one stops.")
        by = Job.objects.using(self.using).values_list("cancel_asked_by", flat=True).get(pk=self.id)
        if by:
            raise JobCancelled(f"Cancelled by {by}. What was done stays; the job can be run again.")
        if self._keeper.stopping():
            raise JobInterrupted("Its process was ordered to end. What was done stays; the job is queued again.")

    def say(self, text: str) -> None:
        """Writes a line to the job's stream."""
        self._progress.say(text)

    def note_before(self, figures: Mapping[str, Any]) -> None:
        """Stores figures from before the work. If an earlier run of the job has stored figures, these are kept."""
        Job.objects.using(self.using).filter(pk=self.id, before__isnull=True).update(before=dict(figures))

    def note_after(self, figures: Mapping[str, Any]) -> None:
        """Stores figures from after the work, under the names that ``note_before`` used."""
        show_progress(self.id, self.using, after=dict(figures))

    def _store(self, stage: str, done: int, total: int | None, rate: float | None) -> None:
        show_progress(self.id, self.using, stage=stage, done=done, total=total, rate=rate, unit=self._unit)


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

    ``using`` defaults to the database of the streams, and ``stream`` to standard error. With ``resume``, the newest job
    with these arguments that failed or was killed is continued, if there is one. ``work`` replaces the work of the
    kind.

    Raises what ``check_arguments`` does, then ``JobCancelled``, ``JobLost`` and the errors of the work, which are also
    stored in the row.
    """
    alias = using or stream_settings().database
    checked = check_arguments(name, arguments, alias)
    with hold_lock(alias) as lock:
        ended = claim_resumable_job(lock, name, checked, alias) if resume else None
        job = ended or begin_job(lock, name, checked, alias)
        summary = carry_out(job, alias, stream or sys.stderr, work, ProcessLink(lock))
        # This run has done the work of killed jobs with the same arguments, so none of them is to be resumed.
        close_killed(lock, alias, kind=name, arguments=dict(checked))
        return summary


def queue_job(
    name: str, arguments: Mapping[str, Any], by: str, using: str | None = None, *, confirmed_from: int | None = None
) -> Job:
    """Queues a job for ``manage.py runjobs``, which is notified when the caller's transaction commits.

    ``by`` is the user who asks. ``confirmed_from`` is the dry run that this job carries out; only one job may do that.

    Raises what ``check_arguments`` does, ``UnusableArguments`` for arguments that are too long, ``QueueFull``, and
    ``CarriedOut`` if the dry run was confirmed before.
    """
    alias = using or stream_settings().database
    checked = check_arguments(name, arguments, alias)
    if len(json.dumps(dict(checked))) > _MOST_OF_ARGUMENTS:
        raise UnusableArguments(f"The arguments are longer than {_MOST_OF_ARGUMENTS:,} characters of JSON.")
    # Counted without a lock: callers that queue at the same time may exceed the limit by a few jobs.
    if Job.objects.using(alias).filter(state=JobState.QUEUED).count() >= MOST_QUEUED:
        raise QueueFull(f"{MOST_QUEUED:,} jobs wait already. Let manage.py runjobs work, or cancel some of them.")
    with transaction.atomic(using=alias):
        job = _queued(Job(kind=name, arguments=dict(checked), asked_by=by, confirmed_from=confirmed_from), alias)
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [channel(cursor, QUEUE_CHANNEL), str(job.pk)])
    return job


def _queued(job: Job, using: str) -> Job:
    """Inserts the row of a queued job. Raises ``UnusableArguments`` and ``CarriedOut``."""
    job.state, job.queued_at = JobState.QUEUED, Now()
    try:
        with storable_arguments(), transaction.atomic(using=using):
            job.save(using=using, force_insert=True)
    except IntegrityError as error:
        raise CarriedOut(f"Dry run {job.confirmed_from} was confirmed already, and is carried out once.") from error
    return job


def _work(run: JobRun) -> Mapping[str, Any]:
    kind = _kind(run.kind)
    return kind.plan(run) if run.arguments.get(DRY_RUN) else kind.run(run)


def carry_out(
    job: Job, using: str, stream: TextIO, work: Work | None = None, keeper: ProcessLink | None = None
) -> Mapping[str, Any]:
    """Does the work of a job whose lock this process holds, and writes into the job's row how it ended.

    Returns the summary. ``work`` replaces the work of the kind. Raises the errors of the work, and ``JobLost`` if
    another process has begun the job meanwhile. The run then writes nothing, because the row belongs to the other
    process.
    """
    keeper = keeper or ProcessLink()
    log.info("job.began", job=job.pk, kind=job.kind, asked_by=job.asked_by)
    try:
        with past_pooler(using):
            summary = (work or _work)(JobRun(job, using, stream, keeper))
        _finish(job, using, summary)
    except JobCancelled as error:
        end_run(job, using, state=JobState.CANCELLED, finished_at=Now())
        log.warning("job.cancelled", job=job.pk, kind=job.kind, why=str(error))
        raise
    except JobInterrupted as error:
        _put_back(job, using)
        log.warning("job.interrupted", job=job.pk, kind=job.kind, why=str(error))
        raise
    except BaseException as error:
        _fail(job, using, error, keeper)
        raise
    log.info("job.done", job=job.pk, kind=job.kind)
    return summary


def _finish(job: Job, using: str, summary: Mapping[str, Any]) -> None:
    """Marks a job as done, and adds the number of rows that it changed to the sums of ``pipeline.jobs.counts``.

    Both are done in one transaction.

    Raises ``JobLost`` if another run has taken the job over.
    """
    with transaction.atomic(using=using):
        if not end_run(job, using, state=JobState.DONE, summary=dict(summary), finished_at=Now(), stage="", error=""):
            raise JobLost(
                f"Job {job.pk} was done here, but another process has begun it meanwhile; its row is that one's."
            )
        count_rows(job.pk, using)


def _put_back(job: Job, using: str) -> None:
    """Queues an interrupted job again. The run does not count as an attempt, because the job did not fail."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        end_run(job, using, state=JobState.QUEUED, stage="", attempts=F("attempts") - 1)
        cursor.execute("SELECT pg_notify(%s, %s)", [channel(cursor, QUEUE_CHANNEL), str(job.pk)])


def _fail(job: Job, using: str, error: BaseException, keeper: ProcessLink) -> None:
    """Marks a job as failed.

    If the job's lock was lost, as after a restart of the database, a job from the queue is not marked. It is then
    queued again.
    """
    why = masked(str(error)) or _WHY.get(type(error), type(error).__name__)
    if not keeper.has_lost():
        log.error("job.failed", job=job.pk, kind=job.kind, error=why)
        end_run(job, using, state=JobState.FAILED, error=why[:2000], finished_at=Now())
        return
    log.error("job.lost", job=job.pk, kind=job.kind, error=why)
    connections[using].close()  # the cause that ended the lock's connection may have ended this one, too
    # A queued job is not marked: its row stays ``running`` without a lock, so ``requeue_killed`` queues it again.
    if job.queued_at is None:
        with suppress(DatabaseError, InterfaceError):  # without the database the row stays that of a killed job
            end_run(job, using, state=JobState.FAILED, error=why[:2000], finished_at=Now())


def claim_queued_job(lock: JobLock, job: int, using: str) -> Job | None:
    """Takes the lock of a queued job and marks the job as running in this process.

    Returns null if another process holds the lock, or if the job no longer waits.
    """
    if not lock.take(job):
        return None
    # A lists the job, B takes it, runs it and releases the lock, A takes the lock. The state, read under the lock, shows A that
    # the job is done.
    queued = Job.objects.using(using).filter(pk=job, state=JobState.QUEUED)
    # B runs the job and is asked to end it. Before its next step B is killed or stopped, so the job is queued again. It
    # must not be begun then.
    asked = queued.exclude(cancel_asked_by="")
    if asked.update(state=JobState.CANCELLED, finished_at=Now(), updated_at=Now()):
        log.warning("job.cancelled", job=job, why="this was asked for before it was queued again")
        lock.give_back(job)
        return None
    if not queued.update(started_at=Now(), attempts=F("attempts") + 1, **at_work_here()):
        lock.give_back(job)
        return None
    return Job.objects.using(using).get(pk=job)
