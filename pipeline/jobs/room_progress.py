"""Stores which rooms a job over many rooms has done. If the job is killed, it continues with the other rooms.

Rooms are stored several at a time, at most once a second. A job that was killed therefore repeats the rooms of its last
second, and its work must be repeatable. The job's counts so far are stored in the same transaction.

If rooms are done in the order of their IDs, one row says that all rooms up to an ID are done. So the table names only
the single rooms after that ID.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from django.db import connections, transaction

from pipeline.models import ComparedRooms

__all__ = ["RoomProgress"]

_WRITE_SECONDS = 1.0
#: Each new row has the counts of the whole job so far, so older rows need not keep their counts.
_ONLY_NEWEST = "UPDATE pipeline_comparedrooms SET counted = NULL WHERE job_id = %s AND counted IS NOT NULL"
_FORGET = "DELETE FROM pipeline_comparedrooms WHERE job_id = %s"
_WRITE = (
    "INSERT INTO pipeline_comparedrooms (job_id, through, room_ids, counted) VALUES (%s, %s, %s::text[], %s::jsonb)"
)


class RoomProgress:
    """The stored progress of one job. ``room_id in progress`` is true if an earlier run of the job has done the room.

    ``counted`` holds the counts that the earlier run stored last, as JSON. It is null if no counts are stored.
    """

    def __init__(self, job: int, using: str) -> None:
        self._job = job
        self._using = using
        self.through = ""
        """For a job over all rooms, in the order of their IDs: all rooms up to this ID are done."""
        self.counted: Mapping[str, Any] | None = None
        self._done: set[str] = set()
        self._new: list[str] = []
        self._count: Callable[[], Mapping[str, Any]] = dict
        self._wrote = time.monotonic()
        for row in ComparedRooms.objects.using(using).filter(job_id=job).order_by("pk"):
            self.through = row.through
            self._done.update(row.room_ids)
            self.counted = row.counted if row.counted is not None else self.counted

    def counts_by(self, count: Callable[[], Mapping[str, Any]]) -> None:
        """Sets the function that returns the job's counts so far.

        It is called at each write. Its result must fit JSON.
        """
        self._count = count

    def __contains__(self, room_id: str) -> bool:
        return room_id in self._done

    def add(self, room_id: str) -> None:
        """Records that a room is done and counted.

        If the last write was a second ago, writes all rooms recorded since.
        """
        self._new.append(room_id)
        if time.monotonic() - self._wrote >= _WRITE_SECONDS:
            self._write([_ONLY_NEWEST])

    def all_done(self, through: str) -> None:
        """Records that all rooms up to ``through`` are done, and deletes the rows that name single rooms."""
        self.through, self._new = through, []
        self._done.clear()
        self._write([_FORGET])

    def forget(self) -> None:
        """Deletes the stored progress. Called when the job is done."""
        with connections[self._using].cursor() as cursor:
            cursor.execute(_FORGET, [self._job])

    def _write(self, before: list[str]) -> None:
        # Rooms and counts commit together: otherwise a job that is killed in between would count rooms twice, or not at
        # all.
        with transaction.atomic(using=self._using), connections[self._using].cursor() as cursor:
            for statement in before:
                cursor.execute(statement, [self._job])
            cursor.execute(_WRITE, [self._job, self.through, self._new, json.dumps(dict(self._count()))])
        self._new, self._wrote = [], time.monotonic()
