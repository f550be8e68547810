"""Carrying out jobs: what a kind of job is, and one run of it with progress, figures before and after, and an end when asked.

A command runs a job at once (``run_job``); the admin and other services queue one (``queue_job``) for ``manage.py runjobs``. Both
take the same way, so a job looks the same wherever it was asked for. A kind does its work in small transactions and counts after
each, outside of it: a count is where a job ends when somebody cancels it. Work must be good to be run again after it was killed.
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
    close_killed,
    end_cancelled_job,
    end_run,
    hold_lock,
    resumable_job,
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
    "Keeper",
    "carry_out",
    "check_arguments",
    "job_kinds",
    "queue_job",
    "register",
    "run_job",
    "take_over",
]

log = get_logger(__name__)
QUEUE_CHANNEL = "replsite_jobs"
MOST_QUEUED = 1_000
"""Jobs that may wait; whoever asks for one more is told so."""
_MOST_OF_ARGUMENTS = 100_000
_LOOK_SECONDS = 1.0
_WHY: Mapping[type[BaseException], str] = {
    KeyboardInterrupt: "Interrupted. What was done stays; the job can be run again."
}


class JobKind:
    """A kind of job: what it takes, what it would do, what it does. Command, form and check are made of its ``arguments``."""

    name = ""
    """What a person reads: ``censor``, ``purge history``."""
    help = ""
    arguments: Sequence[Argument] | None = ()
    """Null: JSON of any form, which `check` looks at."""
    changes_nothing = False
    staging_prefix: str | None = None
    """Tables of a job have this prefix and its number; while there are any the job's row stays."""

    def check(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the arguments with all defaults filled in; raises ``UnusableArguments``. Asks no database."""
        known = [one for one in self.arguments or () if one.stored]
        if unknown := sorted(set(given) - {one.name for one in known}):
            names = ", ".join(one.name for one in known) or "none"
            raise UnusableArguments(f"Unknown arguments: {', '.join(map(str, unknown))}. There are: {names}.")
        checked = {one.name: one.value(given) for one in known}
        self.check_together(checked)
        return {one.name: checked[one.name] for one in known if not one.omitted or checked[one.name] is not None}

    def check_together(self, checked: dict[str, Any]) -> None:
        """Raises ``UnusableArguments`` for arguments that do not go together; may fill in what follows from others."""

    def look(self, arguments: Mapping[str, Any], using: str) -> None:
        """Raises for checked arguments what the work would raise at once: what is mistyped shall not be a job that failed.

        Changes nothing.
        """

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """The dry run: changes nothing; returns the summary that `run` would."""
        raise NotImplementedError(f"{self.name} takes no {DRY_RUN}.")

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Does the work; returns the summary, as JSON can hold it."""
        raise NotImplementedError(self.name)

    def lines(self, summary: Mapping[str, Any]) -> Iterable[str]:
        """Returns the summary for a person."""
        return [json.dumps(summary)]

    def judge(self, arguments: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Raises ``UnusableArguments`` for names that the work has not found, ``PipelineError`` for what it left wrong."""


_kinds: dict[str, JobKind] = {}


def register(*kinds: JobKind) -> None:
    """Make kinds known, while Django loads the room that has them."""
    _kinds.update({kind.name: kind for kind in kinds})


def job_kinds() -> Mapping[str, JobKind]:
    """All kinds by name."""
    return dict(sorted(_kinds.items()))


def _kind(name: str) -> JobKind:
    if name not in _kinds:
        raise UnknownKind(f"There is no kind of job {name!r}; there are: {', '.join(sorted(_kinds)) or 'none'}.")
    return _kinds[name]


def check_arguments(name: str, arguments: Mapping[str, Any], using: str) -> Mapping[str, Any]:
    """The arguments with all defaults, as a job of this kind has them.

    Raises ``UnknownKind``, ``UnusableArguments``, and what the kind's `look` does.
    """
    kind = _kind(name)
    checked = kind.check(arguments)
    kind.look(checked, using)
    return checked


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


@dataclass(frozen=True, slots=True)
class Keeper:
    """What a run asks of the process that it is in: whether the job is still its own, and whether it is to leave off."""

    lock: JobLock | None = None
    stopping: Callable[[], bool] = lambda: False

    def has_lost(self) -> bool:
        """Whether the lock is gone with its connection."""
        return self.lock is not None and not self.lock.is_held()


class JobRun:
    """A job at work in this process, as its kind sees it."""

    def __init__(self, job: Job, using: str, stream: TextIO, keeper: Keeper | None = None) -> None:
        if not isinstance(job.arguments, dict):
            raise UnusableArguments(f"The arguments of job {job.pk} are no JSON object. Queue another one.")
        self.id = job.pk
        self.kind: str = job.kind
        self.arguments: Mapping[str, Any] = job.arguments
        self.using = using
        self._keeper = keeper or Keeper()
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

    def spark_steps(self, spark: SparkSession, also: Callable[[], None] = lambda: None) -> AbstractContextManager[None]:
        """While the block waits for Spark, steps go on in another thread: what ends the job ends Spark's tasks, too.

        Only for Spark jobs that the block's own thread begins. Raises what ``step`` raises, or ``also``, which is called with it
        and may raise a ``PipelineError`` of its own.
        """

        def look() -> None:
            also()
            self.step()

        return spark_steps(look, spark, f"replsite job {self.id}")

    def step(self) -> None:
        """Raises ``JobCancelled``, ``JobInterrupted`` or ``JobLost`` when the work is to end; looks once a second at most."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        if self._keeper.has_lost():
            raise JobLost(f"Job {self.id} has lost its lock, so another process may have begun it; this one leaves it.")
        by = Job.objects.using(self.using).values_list("cancel_asked_by", flat=True).get(pk=self.id)
        if by:
            raise JobCancelled(f"Cancelled by {by}. What was done stays; the job can be run again.")
        if self._keeper.stopping():
            raise JobInterrupted("Its process was told to end. What was done stays; the job is queued again.")

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
    """Run a job now, in this process; returns its summary. ``work``: in place of the kind's.

    ``resume``: the newest that ended early with these arguments, if any.

    Raises what ``check_arguments`` does; then ``JobCancelled`` and what the work raises, which the row tells as well.
    """
    alias = using or stream_settings().database
    checked = check_arguments(name, arguments, alias)
    with hold_lock(alias) as lock:
        ended = resumable_job(lock, name, checked, alias) if resume else None
        job = ended or begin_job(lock, name, checked, alias)
        summary = carry_out(job, alias, stream or sys.stderr, work, Keeper(lock))
        close_killed(lock, alias, kind=name, arguments=dict(checked))  # their work is done now
        return summary


def queue_job(
    name: str, arguments: Mapping[str, Any], by: str, using: str | None = None, *, confirmed_from: int | None = None
) -> Job:
    """Leave a job for ``manage.py runjobs``; ``confirmed_from``: the dry run that it carries out, which no other job does.

    Raises what ``check_arguments`` does, ``QueueFull``, and ``CarriedOut`` for a dry run that was confirmed before.
    """
    alias = using or stream_settings().database
    checked = check_arguments(name, arguments, alias)
    if len(json.dumps(dict(checked))) > _MOST_OF_ARGUMENTS:
        raise UnusableArguments(f"The arguments are longer than {_MOST_OF_ARGUMENTS:,} characters of JSON.")
    if Job.objects.using(alias).filter(state=JobState.QUEUED).count() >= MOST_QUEUED:
        raise QueueFull(f"{MOST_QUEUED:,} jobs wait already. Let manage.py runjobs work, or cancel some of them.")
    with transaction.atomic(using=alias):
        job = _queued(Job(kind=name, arguments=dict(checked), asked_by=by, confirmed_from=confirmed_from), alias)
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [channel(cursor, QUEUE_CHANNEL), str(job.pk)])
    return job


def _queued(job: Job, using: str) -> Job:
    """The row of a job that waits."""
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
    job: Job, using: str, stream: TextIO, work: Work | None = None, keeper: Keeper | None = None
) -> Mapping[str, Any]:
    """Do the work of a job whose lock this process holds (its kind's, if not told), and write into its row how it ended.

    A run that lost its lock writes nothing: the row is the next one's.
    """
    keeper = keeper or Keeper()
    log.info("job.began", job=job.pk, kind=job.kind, asked_by=job.asked_by)
    try:
        with past_pooler(using):
            summary = (work or _work)(JobRun(job, using, stream, keeper))
    except JobCancelled as error:
        end_cancelled_job(job.pk, using)
        log.warning("job.cancelled", job=job.pk, kind=job.kind, why=str(error))
        raise
    except JobInterrupted as error:
        _put_back(job, using)
        log.warning("job.interrupted", job=job.pk, kind=job.kind, why=str(error))
        raise
    except BaseException as error:
        _fail(job, using, error, keeper)
        raise
    if not end_run(job, using, state=JobState.DONE, summary=dict(summary), finished_at=Now(), stage="", error=""):
        raise JobLost(f"Job {job.pk} was done here, but another process has begun it meanwhile; its row is that one's.")
    log.info("job.done", job=job.pk, kind=job.kind)
    count_rows(job.pk, using)
    return summary


def _put_back(job: Job, using: str) -> None:
    """Queue a job again that did not fail; being told to end is no attempt."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        end_run(job, using, state=JobState.QUEUED, stage="", attempts=F("attempts") - 1)
        cursor.execute("SELECT pg_notify(%s, %s)", [channel(cursor, QUEUE_CHANNEL), str(job.pk)])


def _fail(job: Job, using: str, error: BaseException, keeper: Keeper) -> None:
    """The job ended early. One of the queue whose lock went, as when the database was started anew, is left to be begun again."""
    why = masked(str(error)) or _WHY.get(type(error), type(error).__name__)
    if not keeper.has_lost():
        log.error("job.failed", job=job.pk, kind=job.kind, error=why)
        end_run(job, using, state=JobState.FAILED, error=why[:2000], finished_at=Now())
        return
    log.error("job.lost", job=job.pk, kind=job.kind, error=why)
    connections[using].close()  # it may be as dead as the lock's
    if job.queued_at is None:
        with suppress(DatabaseError, InterfaceError):  # away; the row then tells of a killed job, which is true as well
            end_run(job, using, state=JobState.FAILED, error=why[:2000], finished_at=Now())


def take_over(lock: JobLock, job: int, using: str) -> Job | None:
    """Make a queued job this process's own and running; null when another has it."""
    if not lock.take(job):
        return None
    queued = Job.objects.using(using).filter(pk=job, state=JobState.QUEUED)
    if not queued.update(started_at=Now(), attempts=F("attempts") + 1, **at_work_here()):
        lock.give_back(job)
        return None
    return Job.objects.using(using).get(pk=job)
