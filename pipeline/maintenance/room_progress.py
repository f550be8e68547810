"""Stores which rooms a job over many rooms has done. If the job is killed, its next run continues with the other rooms.

Finished rooms are stored at most once a second, several rooms in one row. So if a job is killed, its next run repeats
the rooms of the last second. The work on a room must be repeatable. The job's counts so far are stored in the same
transaction as the rooms.

A job may work on all rooms in the order of their IDs. Then the table stores up to which room ID all rooms are done, and
names only the finished rooms with higher IDs.
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
#: The newest row has the counts of the whole job so far. So the counts in older rows are not needed.
_ONLY_NEWEST = "UPDATE pipeline_comparedrooms SET counted = NULL WHERE job_id = %s AND counted IS NOT NULL"
_FORGET = "DELETE FROM pipeline_comparedrooms WHERE job_id = %s"
_WRITE = (
    "INSERT INTO pipeline_comparedrooms (job_id, through, room_ids, counted) VALUES (%s, %s, %s::text[], %s::jsonb)"
)


class RoomProgress:
    """The stored progress of one job. ``room_id in progress`` is true if an earlier run of the job has done the room.

    ``counted`` holds the counts that an earlier run of the job stored last, decoded from JSON. It is None if no counts
    are stored.
    """

    def __init__(self, job: int, using: str) -> None:
        self._job = job
        self._using = using
        self.through = ""
        """All rooms up to this ID are done. Used by jobs that handle all rooms in the order of their IDs."""
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

        ``count`` is called each time rooms are stored. The result of ``count`` must be serializable as JSON.
        """
        self._count = count

    def __contains__(self, room_id: str) -> bool:
        return room_id in self._done

    def add(self, room_id: str) -> None:
        """Records that a room is done and is included in the job's counts.

        If rooms were last stored at least a second ago, stores all rooms that were recorded since then.
        """
        self._new.append(room_id)
        if time.monotonic() - self._wrote >= _WRITE_SECONDS:
            self._write([_ONLY_NEWEST])

    def all_done(self, through: str) -> None:
        """Stores that all rooms up to the ID ``through`` are done. Deletes the rows that name single rooms."""
        self.through, self._new = through, []
        self._done.clear()
        self._write([_FORGET])

    def forget(self) -> None:
        """Deletes the stored progress. To be called when the job is done."""
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
