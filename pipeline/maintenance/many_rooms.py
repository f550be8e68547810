"""Checks and repairs many rooms, in this process or on Spark, and yields a result for each (driver, with Django).

On Spark, rooms are divided into packs with about the same number of events. Each pack is a Spark job of one task. As
many packs run at a time as there are cores, those with the largest rooms first. So results arrive while other rooms are
still checked, few results are in memory at a time, and a cancelled job ends between two packs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from events.integrity.repair import resync_room
from events.maintenance.restore import invalidate_cached_events
from events.persist.room_cache import clear_caches
from pipeline.errors import JavaMissing, SparkFailed
from pipeline.jobs.room_progress import RoomProgress
from pipeline.jobs.run import JobRun
from pipeline.maintenance import resync_executor as on_executors
from pipeline.maintenance.resync_executor import RoomAnswer, RoomsWork
from pipeline.spark.run_tasks import error_summary
from pipeline.spark.site_session import site_session
from streams.caching import invalidate_room_state
from streams.db.driver import dsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["EVENTS_IN_PROCESS", "ManyRooms", "SizedRoom", "announce_repaired", "pack"]

EVENTS_IN_PROCESS = 50_000
"""The most events that are checked without Spark: starting Spark takes as long as checking them."""
_ROOMS_AT_ONCE = 100_000
_EVENTS_PER_TASK = 20_000
_ROOMS_PER_TASK = 500
_MOST_TASKS = 64
_LOOK_SECONDS = 1.0
_TOLD_AT_ONCE = 1_000

_COUNTED = "(SELECT count(*) FROM events_event e WHERE e.room_id = r.room_id)"
_NEXT_ROOMS = f"SELECT room_id, {_COUNTED} FROM events_room r WHERE room_id > %s ORDER BY room_id LIMIT %s"
_NAMED_ROOMS = f"SELECT room_id, {_COUNTED} FROM unnest(%s::text[]) r (room_id)"
_TAKE_MENDED = """
DELETE FROM pipeline_mendedroom WHERE id IN (
    SELECT id FROM pipeline_mendedroom ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
) RETURNING room_id, user_ids
"""


@dataclass(frozen=True, slots=True)
class SizedRoom:
    """A room with its number of events."""

    room_id: str
    events: int


def pack(rooms: Sequence[SizedRoom], events: int = _EVENTS_PER_TASK) -> Iterator[list[SizedRoom]]:
    """Yields packs of at most 500 rooms and ``events`` events each. A room with more events is a pack of its own.

    The largest rooms come first, so that none of them is left running alone at the end.
    """
    found: list[SizedRoom] = []
    size = 0
    for room in sorted(rooms, key=lambda room: -room.events):
        if found and (size + room.events > events or len(found) == _ROOMS_PER_TASK):
            yield found
            found, size = [], 0
        found.append(room)
        size += room.events
    if found:
        yield found


def announce_repaired(using: str) -> int:
    """Notifies every process of the rooms that executors repaired. Returns how many rooms.

    Deletes the rows that record them. If several processes call this at a time, each row is handled by exactly one of
    them.
    """
    told = 0
    while True:
        # Rows are deleted in the transaction that appends the facts: a process that is killed leaves both or neither. Another
        # process that does the same at this time skips the locked rows.
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute(_TAKE_MENDED, [_TOLD_AT_ONCE])
            found = cursor.fetchall()
            for room_id, user_ids in found:
                invalidate_room_state(room_id, user_ids)
            if found:
                invalidate_cached_events()  # last: from here on readers of the stream wait for the commit
        told += len(found)
        if not found:
            break
    if told:
        clear_caches()
    return told


class ManyRooms:
    """One run over the named rooms, or over all rooms.

    On Spark, the largest rooms are checked first. In this process, rooms are checked in the given order, or in the
    order of their IDs. If ``master`` is null, Spark is used only if there are at least two rooms, more than
    ``EVENTS_IN_PROCESS`` events, and Java.
    """

    def __init__(self, run: JobRun, subject: str, *, mend: bool, master: str | None = None) -> None:
        self._run = run
        self._subject = subject
        self._mend = mend
        self._master = master
        self.progress = RoomProgress(run.id, run.using)
        """The rooms that earlier runs of the job have done; they are left out. The caller adds those of this run."""

    def answers(self, stage: str, rooms: Sequence[str] | None) -> Iterator[RoomAnswer]:
        """Yields the answer for each room that no earlier run of the job has done. ``rooms`` null means all rooms.

        The caller handles an answer, and adds its room to ``progress``. The room's events count as done only when the
        caller asks for a later answer.
        """
        announce_repaired(self._run.using)  # rooms that a killed run repaired without notifying
        parts = self._parts(rooms)
        first = next(parts, [])
        # The total is known if all rooms are in the first part.
        total = sum(room.events for room in self._left(first)) if len(first) < _ROOMS_AT_ONCE else None
        with self._workers(self._left(first)) as spark, self._run.stage(stage, total, "events") as count:
            part: list[SizedRoom] | None = first
            while part:
                left = self._left(part)
                for done, answers in self._on_spark(spark, left) if spark is not None else self._in_process(left):
                    yield from answers
                    count.add(done)
                # After the last part of all rooms the job is done, so its progress need not be stored.
                if rooms is None and len(part) == _ROOMS_AT_ONCE:
                    self.progress.all_done(part[-1].room_id)
                part = next(parts, None)

    def _left(self, rooms: Sequence[SizedRoom]) -> list[SizedRoom]:
        return [room for room in rooms if room.room_id not in self.progress]

    @contextmanager
    def _workers(self, rooms: Sequence[SizedRoom]) -> Iterator[SparkSession | None]:
        """Yields a Spark session, or null if the rooms are to be checked in this process.

        If there is no Java, the rooms are checked in this process. But if a master was named, ``JavaMissing`` is
        raised.
        """
        events = sum(room.events for room in rooms)
        if self._master is None and (len(rooms) < 2 or events <= EVENTS_IN_PROCESS):
            yield None
            return
        with ExitStack() as stack:
            try:
                spark = stack.enter_context(site_session("resync", self._master, light=True))
            except JavaMissing as missing:
                if self._master is not None:
                    raise
                self._run.say(f"{missing} Going on in this process.")
                spark = None
            yield spark

    def _parts(self, rooms: Sequence[str] | None) -> Iterator[list[SizedRoom]]:
        """Yields the rooms with their sizes, 100,000 at a time. ``rooms`` null means all, in the order of their IDs."""
        connection = connections[self._run.using]
        names = None if rooms is None else list(dict.fromkeys(rooms))
        last, start = self.progress.through, 0
        while True:
            with connection.cursor() as cursor:
                if names is None:
                    cursor.execute(_NEXT_ROOMS, [last, _ROOMS_AT_ONCE])
                else:
                    cursor.execute(_NAMED_ROOMS, [names[start : start + _ROOMS_AT_ONCE]])
                found = [SizedRoom(*row) for row in cursor.fetchall()]
            if not found:
                return
            yield found
            last, start = found[-1].room_id, start + _ROOMS_AT_ONCE

    def _in_process(self, rooms: Sequence[SizedRoom]) -> Iterator[tuple[int, list[RoomAnswer]]]:
        for room in rooms:
            done = resync_room(room.room_id, self._subject, self._run.using, dry_run=not self._mend)
            found = RoomAnswer(room.room_id, *((done.before, done.after) if done is not None else (None, None)))
            yield room.events, [found]

    def _on_spark(self, spark: SparkSession, rooms: Sequence[SizedRoom]) -> Iterator[tuple[int, list[RoomAnswer]]]:
        work = RoomsWork(dsn(self._run.using), self._subject, self._mend)
        tasks = _Tasks(spark, f"replsite job {self._run.id}", work, pack(rooms))
        try:
            while tasks.begin():
                for done, answers in tasks.ended():
                    # If nothing was repaired in a room, both reports are the same object. Pickle preserves that.
                    if any(found.before is not found.after for found in answers):
                        announce_repaired(self._run.using)
                    yield done, answers
                self._run.step()
        finally:
            tasks.close()


class _Tasks:
    """The packs of rooms that are submitted to Spark. Each is a Spark job of one task, and a thread waits for it."""

    def __init__(self, spark: SparkSession, group: str, work: RoomsWork, packs: Iterator[list[SizedRoom]]) -> None:
        self._spark, self._group, self._work, self._packs = spark, group, work, packs
        self._most = max(1, min(spark.sparkContext.defaultParallelism, _MOST_TASKS))
        self._pool = ThreadPoolExecutor(self._most, "resync")
        self._waiting: dict[Future[list[RoomAnswer]], int] = {}

    def begin(self) -> bool:
        """Submits packs of rooms, up to twice as many as can run at a time. Returns false if no pack is left."""
        # For each pack at work another one is queued in the pool. So no core is idle while the caller handles answers.
        for packed in itertools.islice(self._packs, 2 * self._most - len(self._waiting)):
            ids = [room.room_id for room in packed]
            future = self._pool.submit(_ask, self._spark, self._group, self._work, ids)
            self._waiting[future] = sum(room.events for room in packed)
        return bool(self._waiting)

    def ended(self) -> Iterator[tuple[int, list[RoomAnswer]]]:
        """Waits up to a second for a pack to end. Yields (number of events, results) of each pack that has ended."""
        for future in wait(self._waiting, _LOOK_SECONDS, FIRST_COMPLETED).done:
            yield self._waiting.pop(future), future.result()

    def close(self) -> None:
        """Cancels the packs that have not ended, and waits for the threads."""
        for future in self._waiting:
            future.cancel()
        self._spark.sparkContext.cancelJobGroup(self._group)
        self._pool.shutdown()


def _ask(spark: SparkSession, group: str, work: RoomsWork, room_ids: Sequence[str]) -> list[RoomAnswer]:
    """Checks rooms in one Spark task, and returns a result for each. Called in a thread. Raises ``SparkFailed``."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - with Spark only
    from pyspark.errors import PySparkException  # noqa: PLC0415

    context = spark.sparkContext
    context.setJobGroup(group, "rooms checked", interruptOnCancel=True)
    try:
        tasks = context.parallelize([list(room_ids)], 1)
        answers: list[Any] = tasks.map(lambda rooms: on_executors.resync_rooms(work, rooms)).collect()
    except (PySparkException, Py4JError) as error:  # the text is read now: that needs the JVM, which may be gone later
        raise SparkFailed(f"Spark could not finish: {error_summary(str(error))}") from None
    return list(answers[0])
