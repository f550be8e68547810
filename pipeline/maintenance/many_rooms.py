"""Checks and repairs many rooms, in this process or on Spark, and yields a result for each.

Runs in the process of the job or command, which is Spark's driver if Spark takes part. Needs Django.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from django.db import connections, transaction

from events.declarations import CACHE_NAME
from events.integrity.repair import resync_room
from events.persist.room_cache import clear_caches
from pipeline.maintenance.resync_executor import RoomAnswer, RoomsWork, resync_rooms
from pipeline.maintenance.room_progress import RoomProgress
from pipeline.maintenance.room_tasks import SizedRoom, are_many, ask_rooms
from pipeline.spark.site_session import session_if_worth_it
from streams.caches import invalidate, invalidate_room_state
from streams.db.driver import dsn
from streams.jobs.job_run import JobRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["EVENTS_IN_PROCESS", "ManyRooms", "announce_repaired"]

EVENTS_IN_PROCESS = 50_000
"""The largest number of events that are checked without Spark. To start Spark takes as long as to check so many."""
_ROOMS_AT_ONCE = 100_000
_EVENTS_PER_TASK = 20_000
_ROOMS_PER_TRANSACTION = 1_000

_COUNTED = "(SELECT count(*) FROM events_event e WHERE e.room_id = r.room_id)"
_NEXT_ROOMS = f"SELECT room_id, {_COUNTED} FROM events_room r WHERE room_id > %s ORDER BY room_id LIMIT %s"
_NAMED_ROOMS = f"SELECT room_id, {_COUNTED} FROM unnest(%s::text[]) r (room_id)"
_DELETE_MENDED = """
DELETE FROM pipeline_mendedroom WHERE id IN (
    SELECT id FROM pipeline_mendedroom ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
) RETURNING room_id, user_ids
"""


def announce_repaired(using: str) -> int:
    """Appends cache invalidations for the rooms that executors repaired. Returns the number of rooms.

    Executors have recorded these rooms in the table ``MendedRoom``. This function deletes the rows from it. If several
    processes call this function at the same time, each row is handled by exactly one process.
    """
    announced = 0
    while True:
        # Rows are deleted in the transaction that appends the facts, so a killed process has done both or neither. Another
        # process that does the same at this time skips the locked rows.
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute(_DELETE_MENDED, [_ROOMS_PER_TRANSACTION])
            found = cursor.fetchall()
            for room_id, user_ids in found:
                invalidate_room_state(room_id, user_ids)
            if found:
                invalidate(CACHE_NAME)  # last: from here on readers of the stream wait for the commit
        announced += len(found)
        if not found:
            break
    if announced:
        clear_caches()
    return announced


class ManyRooms:
    """One run of a job that checks or repairs many rooms.

    On Spark, the largest rooms are checked first. In this process, rooms are checked in the given order, or in the
    order of their IDs. If ``master`` is None, Spark is used only if there are at least two rooms, more than
    ``EVENTS_IN_PROCESS`` events, and Java.
    """

    def __init__(self, run: JobRun, subject: str, *, mend: bool, master: str | None = None) -> None:
        self._run = run
        self._subject = subject
        self._mend = mend
        self._master = master
        self.progress = RoomProgress(run.id, run.using)
        """The rooms that earlier runs of the job have done, and that this run leaves out. The caller adds the rooms of this
        run."""

    def answers(self, stage: str, rooms: Sequence[str] | None) -> Iterator[RoomAnswer]:
        """Checks the rooms that no earlier run of the job has done. Yields an answer for each room.

        ``rooms`` None means all rooms. For each answer, the caller must add the room to ``progress`` before it requests
        the next answer. After that, the room's events are reported as done.
        """
        announce_repaired(self._run.using)  # rooms that a killed run repaired without notifying
        parts = self._parts(rooms)
        first = next(parts, [])
        # The total is known if all rooms are in the first part.
        total = sum(room.size for room in self._left(first)) if len(first) < _ROOMS_AT_ONCE else None
        worth_it = are_many(self._left(first), EVENTS_IN_PROCESS)
        spark_for = session_if_worth_it(self._run, "resync", self._master, worth_it=worth_it)
        with spark_for as spark, self._run.stage(stage, total, "events") as count:
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

    def _parts(self, rooms: Sequence[str] | None) -> Iterator[list[SizedRoom]]:
        """Yields lists of 100,000 rooms with their sizes. If ``rooms`` is None, yields all rooms in the order of their IDs."""
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
            yield room.size, [RoomAnswer.of(room.room_id, done)]

    def _on_spark(self, spark: SparkSession, rooms: Sequence[SizedRoom]) -> Iterator[tuple[int, list[RoomAnswer]]]:
        work = RoomsWork(dsn(self._run.using), self._subject, self._mend)
        for done, answers in ask_rooms(self._run, spark, rooms, _EVENTS_PER_TASK, partial(resync_rooms, work)):
            # If nothing was repaired in a room, both reports are the same object. Pickle preserves that.
            if any(found.before is not found.after for found in answers):
                announce_repaired(self._run.using)
            yield done, answers
