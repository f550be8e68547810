"""Stores which rooms a job over many rooms has done, so that a job that was killed goes on with the rest.

Rooms are stored several at a time, at most once a second. A job that was killed therefore repeats the rooms of its last
second, and its work must be repeatable. What the job has counted so far is stored in the same transaction.

Where rooms are done in the order of their IDs, all rooms up to an ID take one row. So the table holds no more rooms than
are worked on together.
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
#: Each row that is written has the whole count so far, so older rows need not keep theirs.
_ONLY_NEWEST = "UPDATE pipeline_comparedrooms SET counted = NULL WHERE job_id = %s AND counted IS NOT NULL"
_FORGET = "DELETE FROM pipeline_comparedrooms WHERE job_id = %s"
_WRITE = (
    "INSERT INTO pipeline_comparedrooms (job_id, through, room_ids, counted) VALUES (%s, %s, %s::text[], %s::jsonb)"
)


class RoomProgress:
    """The stored progress of one job. ``room_id in progress`` is true for a room that is recorded as done by an earlier run.

    ``counted`` is the JSON that the job had counted when it was killed, or null if it starts at the beginning.
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
        """Sets the function that returns what the job has counted. It is called at each write, and its result must fit JSON."""
        self._count = count

    def __contains__(self, room_id: str) -> bool:
        return room_id in self._done

    def add(self, room_id: str) -> None:
        """Records that a room is done and counted. Writes if the last write is a second ago."""
        self._new.append(room_id)
        if time.monotonic() - self._wrote >= _WRITE_SECONDS:
            self._write([_ONLY_NEWEST])

    def all_done(self, through: str) -> None:
        """Records that all rooms up to this ID are done, and drops the rows that name single rooms."""
        self.through, self._new = through, []
        self._done.clear()
        self._write([_FORGET])

    def forget(self) -> None:
        """Deletes the progress, when the job is done."""
        with connections[self._using].cursor() as cursor:
            cursor.execute(_FORGET, [self._job])

    def _write(self, before: list[str]) -> None:
        # Rooms and count in one transaction: otherwise a job that is killed in between would count rooms twice, or not at all.
        with transaction.atomic(using=self._using), connections[self._using].cursor() as cursor:
            for statement in before:
                cursor.execute(statement, [self._job])
            cursor.execute(_WRITE, [self._job, self.through, self._new, json.dumps(dict(self._count()))])
        self._new, self._wrote = [], time.monotonic()
