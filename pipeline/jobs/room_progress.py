"""How far a job over many rooms is, room by room, so that it goes on with those that are left after it was killed.

Rooms are written down some at a time, at most every second, so a job that is killed does the last second's rooms again; the work
must bear that. With them goes what the job has counted so far. All rooms up to an ID that are done take one row, so no more is
stored than the rooms that are worked at together.
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
_ONLY_NEWEST = "UPDATE pipeline_comparedrooms SET counted = NULL WHERE job_id = %s AND counted IS NOT NULL"
_FORGET = "DELETE FROM pipeline_comparedrooms WHERE job_id = %s"
_WRITE = (
    "INSERT INTO pipeline_comparedrooms (job_id, through, room_ids, counted) VALUES (%s, %s, %s::text[], %s::jsonb)"
)


class RoomProgress:
    """Of one job. ``counted``: what it had counted when it was killed, null where it begins; as JSON holds it."""

    def __init__(self, job: int, using: str) -> None:
        self._job = job
        self._using = using
        self.through = ""
        """Where all rooms are gone through in the order of their IDs: those up to this one are done."""
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
        """Who tells what is counted, whenever it is written down."""
        self._count = count

    def __contains__(self, room_id: str) -> bool:
        return room_id in self._done

    def add(self, room_id: str) -> None:
        """A room is done, and counted."""
        self._new.append(room_id)
        if time.monotonic() - self._wrote >= _WRITE_SECONDS:
            self._write([_ONLY_NEWEST])

    def all_done(self, through: str) -> None:
        """All rooms up to this ID are done, whichever they are."""
        self.through, self._new = through, []
        self._done.clear()
        self._write([_FORGET])

    def forget(self) -> None:
        """The job is done."""
        with connections[self._using].cursor() as cursor:
            cursor.execute(_FORGET, [self._job])

    def _write(self, before: list[str]) -> None:
        with transaction.atomic(using=self._using), connections[self._using].cursor() as cursor:
            for statement in before:
                cursor.execute(statement, [self._job])
            cursor.execute(_WRITE, [self._job, self.through, self._new, json.dumps(dict(self._count()))])
        self._new, self._wrote = [], time.monotonic()
