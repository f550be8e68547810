"""The queue of jobs: ``manage.py runjobs`` carries out, one after another, what the admin or another service left.

Any number of processes may serve it; a job is begun by one of them. One that was killed with its process is queued again, at
most ``MOST_ATTEMPTS`` times. A process that is told to end leaves the job at hand at its next step and queues it again. A
database that is started anew is waited for. Jobs that were over long ago are removed (``pipeline.jobs.history``). Assumes that a
job's work is good to be repeated (``pipeline.jobs.run``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from django.db import Error as DjangoError
from django.db import connections
from django.db.models.functions import Now

from pipeline.errors import JobCancelled, JobInterrupted
from pipeline.jobs.history import remove_old_jobs
from pipeline.jobs.rows import JobLock, hold_lock, killed_jobs
from pipeline.jobs.run import QUEUE_CHANNEL, Keeper, carry_out, job_kinds, take_over
from pipeline.models import Job, JobState
from streams.db.driver import DatabaseError
from streams.reading.notify import NotifyListener
from streams.runtime.logs import Condition, get_logger

__all__ = ["MOST_ATTEMPTS", "JobServer", "requeue_killed"]

log = get_logger(__name__)
MOST_ATTEMPTS = 3
#: A killed job is noticed after so long; a queued one at once.
_LOOK_SECONDS = 10.0
_AWAY_SECONDS = 1.0
#: The queue is looked at no more often than this, whatever is heard: every role that may connect can say that there is a job.
_LOOK_GAP_SECONDS = 0.2
_REMOVE_SECONDS = 3_600.0


def requeue_killed(lock: JobLock, using: str) -> list[int]:
    """Queue the jobs again whose process was killed; those that were begun too often have failed."""
    found = []
    for job in sorted(killed_jobs(using)):
        row = Job.objects.using(using).filter(pk=job, queued_at__isnull=False, state=JobState.RUNNING)
        if not row.exists() or not lock.take(job):
            continue
        if row.filter(attempts__gte=MOST_ATTEMPTS).update(
            state=JobState.FAILED, error=f"killed {MOST_ATTEMPTS} times", finished_at=Now(), updated_at=Now()
        ):
            log.error("job.given_up", job=job, attempts=MOST_ATTEMPTS)
        elif row.update(state=JobState.QUEUED, stage="", updated_at=Now()):
            log.warning("job.queued_again", job=job, why="its process was killed")
            found.append(job)
        lock.give_back(job)
    return found


class _QueueListener(NotifyListener[None]):
    """Hears that there may be a job; which one is the table's to tell."""

    def take(self, heard: Sequence[tuple[int, str]]) -> list[None]:
        """One for all."""
        return [None] if heard else []


class JobServer:
    """Serves the queue until it is stopped, or until it is empty."""

    def __init__(self, using: str, stream: TextIO, say: Callable[[str], object]) -> None:
        self._using = using
        self._stream = stream
        self._say = say
        self._heard = threading.Event()
        self._stopping = False
        self._removed_at: float | None = None
        self._database_away = Condition(log, "jobs.database_away", "jobs.database_back")
        self.done = self.failed = 0

    def stop(self) -> None:
        """Take no further job; from any thread or a signal handler."""
        self._stopping = True
        self._heard.set()

    def run(self, *, once: bool) -> None:
        """Carry out what is queued; then wait for more, unless ``once``.

        Raises database errors at the beginning, and with ``once``; later ones are waited out.
        """
        listener = _QueueListener(QUEUE_CHANNEL, lambda _: self._heard.set(), self._using, "jobs")
        listener.start()
        try:
            while not self._serve_while_it_lasts(once=once):
                self._heard.clear()
                self._heard.wait(_AWAY_SECONDS)  # the listener is connected again, or once more in vain
        finally:
            listener.stop()

    def _serve(self, lock: JobLock, *, once: bool) -> None:
        look_due = 0.0
        while not self._stopping:
            time.sleep(max(0.0, look_due - time.monotonic()))
            look_due = time.monotonic() + _LOOK_GAP_SECONDS
            self._heard.clear()
            requeue_killed(lock, self._using)
            if self._serve_next(lock):
                look_due = 0.0
                continue
            self._remove_old_jobs(lock)
            if once:
                return
            connections[self._using].close()
            self._heard.wait(_LOOK_SECONDS)

    def _remove_old_jobs(self, lock: JobLock) -> None:
        """Now and then, while nothing is queued."""
        if self._removed_at is not None and time.monotonic() - self._removed_at < _REMOVE_SECONDS:
            return
        self._removed_at = time.monotonic()
        if removed := remove_old_jobs(lock, self._using, lambda: self._stopping):
            log.info("jobs.removed", jobs=removed, why="they were over long ago")

    def _serve_while_it_lasts(self, *, once: bool) -> bool:
        """Serve with a lock of its own; False when the database went away and is to be waited for."""
        try:
            with hold_lock(self._using) as lock:
                self._database_away.ends()
                self._serve(lock, once=once)
        except (DjangoError, DatabaseError) as error:
            if once or self._stopping:
                raise
            self._database_away.begins(error)
            connections[self._using].close()
            return False
        return True

    def _serve_next(self, lock: JobLock) -> bool:
        """Carry out the oldest job that nobody else has; whether there was one. Kinds of a newer version are left for it."""
        queued = Job.objects.using(self._using).filter(state=JobState.QUEUED, kind__in=list(job_kinds())).order_by("pk")
        for number in list(queued.values_list("pk", flat=True)[:100]):
            job = take_over(lock, number, self._using)
            if job is not None:
                self._carry_out(job, lock)
                lock.give_back(job.pk)
                return True
        return False

    def _carry_out(self, job: Job, lock: JobLock) -> None:
        begun = time.monotonic()
        self._say(f"job {job.pk}: {job.kind}, asked for by {job.asked_by}")
        try:
            carry_out(job, self._using, self._stream, keeper=Keeper(lock, lambda: self._stopping))
        except (JobCancelled, JobInterrupted) as error:
            self._say(f"job {job.pk}: {error}")
        except Exception as error:  # noqa: BLE001 - the next job must not suffer from this one; the row has the reason
            self.failed += 1
            self._say(f"job {job.pk}: failed: {error}")
        else:
            self.done += 1
            self._say(f"job {job.pk}: done in {time.monotonic() - begun:.1f} s")
