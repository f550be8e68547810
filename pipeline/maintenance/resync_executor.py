"""Rooms checked and mended, on executors (no Django): the same functions that a process of the site calls for one room.

A room is compared in one view of the database, and mended in a transaction of its own under the room's lock; a task holds one
room at a time. Executors append no facts: what has to be told to other processes is written down in that transaction
(``resync_models.MendedRoom``), so it is not lost when a task, or the whole job, is killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2

from events.errors import RangesDisagree
from events.integrity.compare import RoomReport
from events.integrity.room_mending import Found, find_damage, left_as_it_is, mend_room
from streams.db.long_transactions import NO_LIMITS_IN_SESSION
from streams.runtime.gc_pause import collector_paused, keep_for_good

__all__ = ["RoomAnswer", "RoomsWork", "resync_rooms"]

_ONE_VIEW = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
#: There are as many tasks as cores, so a query that takes two cores only takes longer.
_ALONE = "SET max_parallel_workers_per_gather = 0"
_TO_TELL = "INSERT INTO pipeline_mendedroom (room_id, user_ids) VALUES (%s, %s::text[])"


@dataclass(frozen=True, slots=True)
class RoomsWork:
    """What a task needs; the same for all tasks of a job."""

    dsn: str
    subject: str
    mend: bool


@dataclass(frozen=True, slots=True)
class RoomAnswer:
    """What was found of a room before and after; null: there is no such room."""

    room_id: str
    before: RoomReport | None
    after: RoomReport | None


def resync_rooms(work: RoomsWork, room_ids: Sequence[str]) -> list[RoomAnswer]:
    """Check these rooms, and mend those that differ if that is asked for; safe to be repeated."""
    connection = psycopg2.connect(work.dsn, application_name="replsite spark resync", connect_timeout=10)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(_ALONE)
            cursor.execute(NO_LIMITS_IN_SESSION)
        return [_resync(connection, work, room_id) for room_id in room_ids]
    finally:
        connection.close()
        keep_for_good()


def _resync(connection: Any, work: RoomsWork, room_id: str) -> RoomAnswer:
    with collector_paused():  # what is made of a room is alive until the room is done
        return _looked_at(connection, work, room_id)


def _looked_at(connection: Any, work: RoomsWork, room_id: str) -> RoomAnswer:
    found = _look(connection, room_id, work.subject)
    if found is None or not work.mend or not found.report.of(work.subject):
        report = None if found is None else found.report
        return RoomAnswer(room_id, report, report)
    try:
        with connection, connection.cursor() as cursor:  # a transaction
            mended = mend_room(cursor, room_id, work.subject, found)
            if mended is not None and mended.moved is not None:
                cursor.execute(_TO_TELL, [room_id, list(mended.moved)])
    except RangesDisagree as error:
        return RoomAnswer(room_id, found.report, left_as_it_is(found.report, error))
    before, found = None if mended is None else mended.before, _look(connection, room_id)
    return RoomAnswer(room_id, before, None if found is None else found.report)


def _look(connection: Any, room_id: str, subject: str | None = None) -> Found | None:
    with connection, connection.cursor() as cursor:
        cursor.execute(_ONE_VIEW)
        return find_damage(cursor, room_id, subject)
