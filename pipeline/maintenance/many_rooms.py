"""Rooms checked and mended, few in this process, many on Spark: the answers room by room (driver, with Django).

Handfuls of rooms of about equal size go to Spark as jobs of one task each, as many at a time as it has cores, the largest rooms
first. So answers come while others are worked at, only some are held at a time, and the work ends between two of them when it
is to.
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
from events.maintenance.restore import tell_of_restored
from events.persist.room_cache import forget_kept
from pipeline.errors import JavaMissing, SparkFailed
from pipeline.jobs.room_progress import RoomProgress
from pipeline.jobs.run import JobRun
from pipeline.maintenance import resync_executor as on_executors
from pipeline.maintenance.resync_executor import RoomAnswer, RoomsWork
from pipeline.spark.run_tasks import last_words
from pipeline.spark.site_session import site_session
from streams.caching import invalidate_room_state
from streams.db.driver import dsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["EVENTS_IN_PROCESS", "ManyRooms", "SizedRoom", "pack", "tell_mended"]

EVENTS_IN_PROCESS = 50_000
"""Up to so many events are not worth starting Spark, which takes as long as they do."""
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
    """A room, and how many events it has."""

    room_id: str
    events: int


def pack(rooms: Sequence[SizedRoom], events: int = _EVENTS_PER_TASK) -> Iterator[list[SizedRoom]]:
    """Rooms in tasks of about equal size, the largest first, so that no large room is left for the end."""
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


def tell_mended(using: str) -> int:
    """Tell every process which rooms executors mended, and forget the rows; returns how many. Nothing is told twice, or lost."""
    told = 0
    while True:
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute(_TAKE_MENDED, [_TOLD_AT_ONCE])
            found = cursor.fetchall()
            for room_id, user_ids in found:
                invalidate_room_state(room_id, user_ids)
            if found:
                tell_of_restored()
        told += len(found)
        if not found:
            break
    if told:
        forget_kept()
    return told


class ManyRooms:
    """One run over the named rooms, or over all, in the order of their IDs or of their sizes.

    ``master`` null: Spark is taken when there are more events than ``EVENTS_IN_PROCESS``, and only if there is Java.
    """

    def __init__(self, run: JobRun, subject: str, *, mend: bool, master: str | None = None) -> None:
        self._run = run
        self._subject = subject
        self._mend = mend
        self._master = master
        self.progress = RoomProgress(run.id, run.using)
        """What an earlier run of the job has done, which is left out, and what this one has: the caller adds each room."""

    def answers(self, stage: str, rooms: Sequence[str] | None) -> Iterator[RoomAnswer]:
        """What was found of each room; counts events as done once the caller comes back for the next answer."""
        tell_mended(self._run.using)  # what a killed run left
        parts = self._parts(rooms)
        first = next(parts, [])
        total = sum(room.events for room in self._left(first)) if len(first) < _ROOMS_AT_ONCE else None
        with self._workers(self._left(first)) as spark, self._run.stage(stage, total, "events") as count:
            part: list[SizedRoom] | None = first
            while part:
                left = self._left(part)
                for done, answers in self._on_spark(spark, left) if spark is not None else self._in_process(left):
                    yield from answers
                    count.add(done)
                if rooms is None and len(part) == _ROOMS_AT_ONCE:
                    self.progress.all_done(part[-1].room_id)
                part = next(parts, None)

    def _left(self, rooms: Sequence[SizedRoom]) -> list[SizedRoom]:
        return [room for room in rooms if room.room_id not in self.progress]

    @contextmanager
    def _workers(self, rooms: Sequence[SizedRoom]) -> Iterator[SparkSession | None]:
        """A session where one is worth it."""
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
        """The rooms with their sizes, very many at a time; null: all."""
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
                    if any(found.before is not found.after for found in answers):
                        tell_mended(self._run.using)
                    yield done, answers
                self._run.step()
        finally:
            tasks.close()


class _Tasks:
    """Handfuls of rooms at work on Spark, each as a job of one task that a thread waits for."""

    def __init__(self, spark: SparkSession, group: str, work: RoomsWork, packs: Iterator[list[SizedRoom]]) -> None:
        self._spark, self._group, self._work, self._packs = spark, group, work, packs
        self._most = max(1, min(spark.sparkContext.defaultParallelism, _MOST_TASKS))
        self._pool = ThreadPoolExecutor(self._most, "resync")
        self._waiting: dict[Future[list[RoomAnswer]], int] = {}

    def begin(self) -> bool:
        """Give out as many as are worked at, and as many again; false when all are done."""
        for packed in itertools.islice(self._packs, 2 * self._most - len(self._waiting)):
            ids = [room.room_id for room in packed]
            future = self._pool.submit(_ask, self._spark, self._group, self._work, ids)
            self._waiting[future] = sum(room.events for room in packed)
        return bool(self._waiting)

    def ended(self) -> Iterator[tuple[int, list[RoomAnswer]]]:
        """The events and answers of those that ended within a second."""
        for future in wait(self._waiting, _LOOK_SECONDS, FIRST_COMPLETED).done:
            yield self._waiting.pop(future), future.result()

    def close(self) -> None:
        """Nothing is left to do, or the work is to end."""
        for future in self._waiting:
            future.cancel()
        self._spark.sparkContext.cancelJobGroup(self._group)
        self._pool.shutdown()


def _ask(spark: SparkSession, group: str, work: RoomsWork, room_ids: Sequence[str]) -> list[RoomAnswer]:
    """In a thread: one task, and its answers."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - with Spark only
    from pyspark.errors import PySparkException  # noqa: PLC0415

    context = spark.sparkContext
    context.setJobGroup(group, "rooms checked", interruptOnCancel=True)
    try:
        tasks = context.parallelize([list(room_ids)], 1)
        answers: list[Any] = tasks.map(lambda rooms: on_executors.resync_rooms(work, rooms)).collect()
    except (PySparkException, Py4JError) as error:  # its text needs the JVM, which may be gone when somebody prints it
        raise SparkFailed(f"Spark could not finish: {last_words(str(error))}") from None
    return list(answers[0])
