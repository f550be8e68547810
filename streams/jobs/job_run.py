"""One run of a job, as the work of an operation sees it: progress, figures before and after, and when it is to end.

The work is done in small transactions. It calls ``Count.add`` after each transaction has ended, which raises an error if
the job was cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from streams.jobs.errors import JobCancelled, JobInterrupted, JobLost, UnusableArguments
from streams.jobs.models import Job
from streams.jobs.progress import Progress
from streams.jobs.rows import JobLock, show_progress

#: Seconds between two checks of a run whether it is to end.
_CHECK_SECONDS = 1.0


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

    ``lock`` holds the advisory lock of the job, or is None. ``stopping`` returns true if the process is to stop.
    """

    lock: JobLock | None = None
    stopping: Callable[[], bool] = lambda: False

    def has_lost(self) -> bool:
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
        self._checked_at = time.monotonic()
        self.stage_name = ""
        """The name of the current stage, or an empty text between two stages."""
        self.stage_changed: Callable[[], object] = lambda: None
        """Called whenever ``stage_name`` has changed."""
        self.also: dict[str, Any] = {}
        """Added to the summary beside what the work returns, such as figures of the engine that did the work."""

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str) -> Iterator[Count]:
        """Reports on a stage of the work, with rate and remaining time. Yields a counter, to which the block adds what is done.

        ``total`` is None if the total amount of work is not known.
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
        if now - self._checked_at < _CHECK_SECONDS:
            return
        self._checked_at = now
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
        self._progress.say(text)

    def store_before(self, figures: Mapping[str, Any]) -> None:
        """Stores the figures from before the work. If an earlier run of the job has stored such figures, does nothing."""
        Job.objects.using(self.using).filter(pk=self.id, before__isnull=True).update(before=dict(figures))

    def store_after(self, figures: Mapping[str, Any]) -> None:
        """Stores figures from after the work.

        The figures must have the same names as those of ``store_before``. Then both values of a figure are shown side by
        side.
        """
        show_progress(self.id, self.using, after=dict(figures))

    def _store(self, stage: str, done: int, total: int | None, rate: float | None) -> None:
        show_progress(self.id, self.using, stage=stage, done=done, total=total, rate=rate, unit=self._unit)
