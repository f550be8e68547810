"""Serves the queue of jobs: ``manage.py runjobs`` runs the jobs that the admin or another service queued.

Any number of processes may serve the queue. Each process runs one job after another. No two processes run the same job
at the same time. A job whose process was killed is queued again. After ``MOST_ATTEMPTS`` attempts the job is marked as
failed instead. When a process is asked to stop, its job ends at the next step and is queued again. While the database
cannot be reached, the process waits. Each process also removes old jobs (``streams.jobs.history``).

Assumes that the work of a job can be repeated (``streams.jobs.run``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TextIO

from django.db import Error as DjangoError
from django.db import connections
from django.db.models.functions import Now

from streams.db.driver import DatabaseError
from streams.jobs.errors import JobCancelled, JobInterrupted
from streams.jobs.history import Kept, remove_old_jobs
from streams.jobs.job_run import ProcessLink
from streams.jobs.models import Job, JobState
from streams.jobs.operation import operations
from streams.jobs.rows import JobLock, hold_lock, killed_jobs
from streams.jobs.run import QUEUE_CHANNEL, carry_out, claim_queued_job
from streams.reading.notify import NotifyListener
from streams.runtime.amounts import duration
from streams.runtime.logs import Condition, get_logger

log = get_logger(__name__)
MOST_ATTEMPTS = 3
#: Seconds after which the queue is read even without a notification. When a job is queued, there is a notification.
#: When a job is killed, there is no notification. So a killed job is noticed only after these seconds.
_READ_SECONDS = 10.0
#: Seconds between two attempts to connect to a database that cannot be reached.
_AWAY_SECONDS = 1.0
#: The least number of seconds between two reads of an empty queue. Every role that may connect to the database can send
#: notifications. So without a limit, any role could make this process read the queue all the time.
_READ_GAP_SECONDS = 0.2
#: Seconds between two removals of old jobs.
_REMOVE_SECONDS = 3_600.0


def requeue_killed(lock: JobLock, using: str) -> list[int]:
    """Queues jobs again whose processes were killed. Returns the IDs of these jobs.

    If a job had ``MOST_ATTEMPTS`` attempts, the job is marked as failed instead. Jobs that a command ran are not
    changed.
    """
    found = []
    for job in sorted(killed_jobs(using)):
        # The query runs first without the lock, to skip jobs of commands. The updates below run it again under the
        # lock: another process may have queued the job again in between.
        row = Job.objects.using(using).filter(pk=job, queued_at__isnull=False, state=JobState.RUNNING)
        if not row.exists() or not lock.acquire(job):
            continue
        if row.filter(attempts__gte=MOST_ATTEMPTS).update(
            state=JobState.FAILED, error=f"killed {MOST_ATTEMPTS} times", finished_at=Now(), updated_at=Now()
        ):
            log.error("job.given_up", job=job, attempts=MOST_ATTEMPTS)
        elif row.update(state=JobState.QUEUED, stage="", updated_at=Now()):
            log.warning("job.queued_again", job=job, why="its process was killed")
            found.append(job)
        lock.release(job)
    return found


class _QueueListener(NotifyListener[None]):
    """A listener for notifications that a job was queued. It ignores the payload: the table of jobs says which jobs wait."""

    def parse(self, notifications: Sequence[tuple[int, str]]) -> list[None]:
        """Returns ``[None]`` if there is a notification, otherwise an empty list. The server is woken once for each item."""
        return [None] if notifications else []


class JobServer:
    """A server of the queue. It runs until it is stopped. With ``once``, it ends when the queue is empty.

    ``kept`` says which old jobs stay; without it all do. ``done`` counts the jobs that this server has run without an
    error, ``failed`` the jobs that failed.
    """

    def __init__(self, using: str, stream: TextIO, say: Callable[[str], object], kept: Kept | None = None) -> None:
        self._using = using
        self._kept = kept
        self._stream = stream
        self._say = say
        # Not an Event: its ``set`` in a signal handler would wait for the lock that its ``wait`` in the same thread holds.
        self._woken = SimpleQueue[None]()
        self._stopping = False
        self._removed_at: float | None = None
        self._database_away = Condition(log, "jobs.database_away", "jobs.database_back")
        self.done = self.failed = 0

    def stop(self) -> None:
        """Makes ``run`` end after the current step of the running job. May be called from any thread or a signal handler."""
        self._stopping = True
        self._wake()

    def run(self, *, once: bool) -> None:
        """Runs the queued jobs, then waits for more. With ``once``, returns when the queue is empty.

        Raises database errors that occur when it starts. If ``once`` is true, raises later database errors too. If
        ``once`` is false, waits until the database can be reached again.
        """
        listener = _QueueListener(QUEUE_CHANNEL, lambda _: self._wake(), self._using, "jobs")
        listener.start()
        try:
            while not self._serve_while_it_lasts(once=once):
                self._wait(_AWAY_SECONDS)  # ends early when the listener has connected again
        finally:
            listener.stop()

    def _serve(self, lock: JobLock, *, once: bool) -> None:
        read_due = 0.0
        while not self._stopping:
            time.sleep(max(0.0, read_due - time.monotonic()))
            read_due = time.monotonic() + _READ_GAP_SECONDS
            # Wake-ups are dropped before the queue is read. If a job is queued during the read, its notification is a new
            # one, and the wait below ends at once.
            self._wait(0.0)
            requeue_killed(lock, self._using)
            if self._serve_next(lock):
                read_due = 0.0  # there was a job, so the queue is read again without a pause
                continue
            self._remove_old_jobs(lock)
            if once:
                return
            connections[self._using].close()  # holds no connection while it waits
            self._wait(_READ_SECONDS)

    def _wake(self) -> None:
        if self._woken.empty():  # one is enough, however many come while a job runs
            self._woken.put(None)

    def _wait(self, seconds: float) -> None:
        with suppress(Empty):
            self._woken.get(timeout=seconds)

    def _remove_old_jobs(self, lock: JobLock) -> None:
        is_early = self._removed_at is not None and time.monotonic() - self._removed_at < _REMOVE_SECONDS
        if self._kept is None or is_early:
            return
        self._removed_at = time.monotonic()
        if removed := remove_old_jobs(lock, self._using, self._kept, lambda: self._stopping):
            log.info("jobs.removed", jobs=removed, why="they were over long ago")

    def _serve_while_it_lasts(self, *, once: bool) -> bool:
        """Opens a connection for the locks of jobs, and serves the queue as long as this connection exists.

        Returns false if the connection was lost, so that the caller tries again. Returns true if the server was stopped or,
        with ``once``, the queue is empty.
        """
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
        # A job of a kind that this version does not know stays in the queue, for a newer version.
        queued = (
            Job.objects.using(self._using).filter(state=JobState.QUEUED, kind__in=list(operations())).order_by("pk")
        )
        for number in list(queued.values_list("pk", flat=True)[:100]):
            job = claim_queued_job(lock, number, self._using)
            if job is not None:
                self._carry_out(job, lock)
                lock.release(job.pk)
                return True
        return False

    def _carry_out(self, job: Job, lock: JobLock) -> None:
        started = time.monotonic()
        self._say(f"job {job.pk}: {job.kind}, asked for by {job.asked_by}")
        try:
            carry_out(job, self._using, self._stream, keeper=ProcessLink(lock, lambda: self._stopping))
        except (JobCancelled, JobInterrupted) as error:
            self._say(f"job {job.pk}: {error}")
        except Exception as error:  # noqa: BLE001 - the next job must run all the same; the row has the reason
            self.failed += 1
            self._say(f"job {job.pk}: failed: {error}")
        else:
            self.done += 1
            self._say(f"job {job.pk}: done in {duration(time.monotonic() - started)}")
