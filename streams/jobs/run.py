"""Defines kinds of job, and runs jobs with progress, figures before and after, and cancellation.

A command runs a job at once (``run_job``). The admin and other services queue a job (``queue_job``) for ``manage.py
runjobs``. Both ways run the same code, so the result of a job does not depend on how it was started.

The code of a kind works in small transactions, and calls ``Count.add`` after each transaction has ended. ``Count.add``
raises an error if the job was cancelled. The work must be repeatable, because a killed job is run again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from django.db import DatabaseError, IntegrityError, InterfaceError, connections, transaction
from django.db.models import F
from django.db.models.functions import Now

from streams.conf import stream_settings
from streams.db.driver import channel, past_pooler
from streams.jobs.arguments import DRY_RUN, Argument
from streams.jobs.counts import count_rows
from streams.jobs.errors import (
    CarriedOut,
    JobCancelled,
    JobInterrupted,
    JobLost,
    NotResumable,
    QueueFull,
    UnknownJob,
    UnknownKind,
    UnusableArguments,
)
from streams.jobs.models import Job, JobState
from streams.jobs.progress import Progress
from streams.jobs.rows import (
    JobLock,
    at_work_here,
    begin_job,
    claim_resumable_job,
    close_killed,
    end_run,
    hold_lock,
    queue_again,
    show_progress,
    storable_arguments,
)
from streams.runtime.logs import get_logger
from streams.runtime.masking import masked
from streams.runtime.when_asked import WhenAsked

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
    "register_when_asked",
    "resume_job",
    "run_job",
]

log = get_logger(__name__)
QUEUE_CHANNEL = "replsite_jobs"
MOST_QUEUED = 1_000
"""The largest number of waiting jobs. If so many jobs wait, ``queue_job`` raises ``QueueFull``."""
_MOST_OF_ARGUMENTS = 100_000
#: Seconds between two checks of a run whether it is to end.
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
    """The arguments in order. If it is null, the job takes any JSON, which ``check`` examines."""
    changes_nothing = False
    staging_prefix: str | None = None
    """The names of the staging tables begin with this prefix and the job's number. While these tables exist, the job's row
    is kept."""

    def check(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Checks ``given``, and returns the arguments with all defaults filled in. Raises ``UnusableArguments``.

        Does not query the database.
        """
        known = [one for one in self.arguments or () if one.stored]
        if unknown := sorted(set(given) - {one.name for one in known}):
            names = ", ".join(one.name for one in known) or "none"
            raise UnusableArguments(f"Unknown arguments: {', '.join(map(str, unknown))}. There are: {names}.")
        checked = {one.name: one.value(given) for one in known}
        self.check_together(checked)
        return {one.name: checked[one.name] for one in known if not one.omitted or checked[one.name] is not None}

    def check_together(self, checked: dict[str, Any]) -> None:
        """Raises ``UnusableArguments`` if the arguments contradict each other. May compute an argument from other arguments."""

    def look(self, arguments: Mapping[str, Any], using: str) -> None:
        """Checks in the database whether the work can begin with the checked ``arguments``. Changes nothing.

        Raises the errors that the work would raise when it begins. So a mistyped argument is reported before a job is
        queued.
        """

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """Does the dry run of a job, which changes nothing. Returns a summary with the figures that ``run`` would return."""
        raise NotImplementedError(f"{self.name} takes no {DRY_RUN}.")

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Does the work of a job. Returns the summary, which must be serializable as JSON."""
        raise NotImplementedError(self.name)

    def lines(self, summary: Mapping[str, Any]) -> Iterable[str]:
        """Returns the summary of a job as lines of text for people."""
        return [json.dumps(summary)]

    def judge(self, arguments: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Raises an error if the outcome of the work is not satisfactory. Called with the summary, after the work.

        Raises ``UnusableArguments`` for names that do not exist, and ``PipelineError`` if the job could not mend
        everything.
        """


_kinds: dict[str, JobKind] = {}
_fill = WhenAsked()


def register(*kinds: JobKind) -> None:
    """Registers kinds of job."""
    _kinds.update({kind.name: kind for kind in kinds})


def register_when_asked(function: str) -> None:
    """Records the dotted name of a function. The function is called when kinds of job are first needed, and registers some.

    ``register_when_asked`` may be called while Django loads the apps.
    """
    _fill.add(function)


def job_kinds() -> Mapping[str, JobKind]:
    """Returns the registered kinds by name, in the order of their names."""
    _fill.call()
    return dict(sorted(_kinds.items()))


def _kind(name: str) -> JobKind:
    kinds = job_kinds()
    if name not in kinds:
        raise UnknownKind(f"There is no kind of job {name!r}; there are: {', '.join(kinds) or 'none'}.")
    return kinds[name]


def check_arguments(name: str, arguments: Mapping[str, Any], using: str) -> Mapping[str, Any]:
    """Checks the arguments of a job of the kind ``name``. Returns the arguments with all defaults filled in.

    Raises ``UnknownKind``, ``UnusableArguments``, and the errors of the kind's ``look``.
    """
    kind = _kind(name)
    checked = kind.check(arguments)
    kind.look(checked, using)
    return checked


class Count:
    """A counter of the work that is done in a stage of a job. ``add`` raises an error if the job is to end."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._done = 0

    def __call__(self) -> int:
        """Returns the amount done so far. May be called from another thread."""
        return self._done

    def add(self, number: int = 1) -> None:
        """Adds ``number`` to the amount of work that is done and committed. Raises the errors of ``JobRun.step``."""
        self._done += number
        self._run.step()


@dataclass(frozen=True, slots=True)
class ProcessLink:
    """The connection between a run of a job and the process that runs it.

    ``lock`` holds the advisory lock of the job, or is null. ``stopping`` returns true if the process is to stop.
    """

    lock: JobLock | None = None
    stopping: Callable[[], bool] = lambda: False

    def has_lost(self) -> bool:
        """Returns true if the connection that held the lock has ended. Returns false for a run without a lock."""
        return self.lock is not None and not self.lock.is_held()


class JobRun:
    """One run of a job in this process. This object is the argument of ``JobKind.run``."""

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
        self.stage_name = ""
        """The name of the current stage, or an empty text between two stages."""
        self.stage_changed: Callable[[], object] = lambda: None
        """Called whenever ``stage_name`` has changed."""
        self.also: dict[str, Any] = {}
        """Added to the summary beside what the work returns, such as figures of the engine that did the work."""

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str) -> Iterator[Count]:
        """Reports on a stage of the work, with rate and remaining time. Yields a counter, to which the block adds what is done.

        ``total`` is null if the total amount of work is not known.
        """
        count = Count(self)
        with self._named(name, unit), self._progress.stage(name, total, unit, count):
            yield count

    @contextmanager
    def watch(self, name: str, total: int | None, unit: str, done: Callable[[], int]) -> Iterator[None]:
        """Reports like ``stage`` on work that Spark or another thread does. Calls ``step`` when the block ends.

        ``done`` returns the amount of work done. ``done`` is called at intervals in another thread.
        """
        with self._named(name, unit), self._progress.stage(name, total, unit, done):
            yield
        self.step()

    @contextmanager
    def _named(self, stage: str, unit: str) -> Iterator[None]:
        before, self.stage_name, self._unit = self.stage_name, stage, unit
        self.stage_changed()
        try:
            yield
        finally:
            self.stage_name = before
            self.stage_changed()

    def step(self) -> None:
        """Raises ``JobCancelled``, ``JobInterrupted`` or ``JobLost`` if the job is to end. Checks this at most once a second."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        # The lock is checked first. If it is lost, another process may run the job, and a request in the row is meant for
        # that run.
        if self._keeper.has_lost():
            raise JobLost(f"Job {self.id} has lost its lock, so another process may run it now; this one stops.")
        by = Job.objects.using(self.using).values_list("cancel_asked_by", flat=True).get(pk=self.id)
        if by:
            raise JobCancelled(f"Cancelled by {by}. What was done stays; the job can be run again.")
        if self._keeper.stopping():
            raise JobInterrupted("Its process was ordered to end. What was done stays; the job is queued again.")

    def say(self, text: str) -> None:
        """Writes a line to the job's output."""
        self._progress.say(text)

    def note_before(self, figures: Mapping[str, Any]) -> None:
        """Stores the figures from before the work. If an earlier run of the job has stored such figures, does nothing."""
        Job.objects.using(self.using).filter(pk=self.id, before__isnull=True).update(before=dict(figures))

    def note_after(self, figures: Mapping[str, Any]) -> None:
        """Stores figures from after the work.

        The figures must have the same names as those of ``note_before``. Then both values of a figure are shown side by
        side.
        """
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
    with transaction.atomic(using=alias):
        job = _queued(Job(kind=name, arguments=dict(checked), asked_by=by, confirmed_from=confirmed_from), alias)
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
    """Notifies the processes that serve the queue, when the caller's transaction commits."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel(cursor, QUEUE_CHANNEL), str(job)])


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
            summary = (work or _work)(run)
        _finish(job, using, {**summary, **{name: found for name, found in run.also.items() if found}})
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
    """Marks a job as done. In the same transaction, adds the job's changes of tables to the sums of ``streams.jobs.counts``.

    Raises ``JobLost`` if another run has taken the job over.
    """
    with transaction.atomic(using=using):
        if not end_run(job, using, state=JobState.DONE, summary=dict(summary), finished_at=Now(), stage="", error=""):
            raise JobLost(
                f"Job {job.pk} was done here, but another process has begun it meanwhile; its row is that one's."
            )
        count_rows(job.pk, using)


def _put_back(job: Job, using: str) -> None:
    """Queues an interrupted job again. The interrupted run does not count as an attempt, because the job did not fail."""
    with transaction.atomic(using=using):
        end_run(job, using, state=JobState.QUEUED, stage="", attempts=F("attempts") - 1)
        _notify(job.pk, using)


def _fail(job: Job, using: str, error: BaseException, keeper: ProcessLink) -> None:
    """Marks a job as failed.

    A queued job whose lock was lost is not marked. The lock is lost, for example, when the database restarts.
    ``requeue_killed`` then queues the job again.
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
        with suppress(DatabaseError, InterfaceError):  # if the database is away, the job will be seen as killed
            end_run(job, using, state=JobState.FAILED, error=why[:2000], finished_at=Now())


def claim_queued_job(lock: JobLock, job: int, using: str) -> Job | None:
    """Takes the lock of a queued job and marks the job as running in this process.

    Returns null if another process holds the lock, or if the job does not wait in the queue any more.
    """
    if not lock.take(job):
        return None
    # A lists the job. B takes it, runs it and releases the lock. A takes the lock. So A reads the state again under the lock, and
    # sees that the job is done.
    queued = Job.objects.using(using).filter(pk=job, state=JobState.QUEUED)
    # B runs the job, and a user cancels it. Before its next step B is killed or stopped, so the job is queued again. It must
    # be cancelled here, and not begun.
    asked = queued.exclude(cancel_asked_by="")
    if asked.update(state=JobState.CANCELLED, finished_at=Now(), updated_at=Now()):
        log.warning("job.cancelled", job=job, why="this was asked for before it was queued again")
        lock.give_back(job)
        return None
    if not queued.update(started_at=Now(), attempts=F("attempts") + 1, **at_work_here()):
        lock.give_back(job)
        return None
    return Job.objects.using(using).get(pk=job)
