"""Checks and repairs rooms on Spark executors, with the functions that a process of the site uses for one room (no Django).

A room is compared in one snapshot of the database. It is repaired in a transaction of its own, under the room's lock. A
task holds one room at a time.

Executors append no facts. If other processes must drop what they cached of a room, the transaction of the repair also
inserts a row for the room (``pipeline.models.MendedRoom``). So the notification is not lost if the task, or the whole
job, is killed. The driver sends it later (``pipeline.maintenance.many_rooms``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2

from events.errors import RangesDisagree
from events.integrity.compare import RoomReport
from events.integrity.room_mending import Found, find_damage, left_as_it_is, repair_room
from streams.db.long_transactions import NO_LIMITS_IN_SESSION
from streams.runtime.gc_pause import collector_paused, freeze_objects

__all__ = ["RoomAnswer", "RoomsWork", "resync_rooms"]

_ONE_VIEW = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
#: No parallel workers: there are as many tasks as cores, so a second core for one query would be taken from another
#: task.
_ALONE = "SET max_parallel_workers_per_gather = 0"
_TO_TELL = "INSERT INTO pipeline_mendedroom (room_id, user_ids) VALUES (%s, %s::text[])"


@dataclass(frozen=True, slots=True)
class RoomsWork:
    """The arguments of a task, the same for all tasks of a job."""

    dsn: str
    subject: str
    mend: bool


@dataclass(frozen=True, slots=True)
class RoomAnswer:
    """The reports on a room before and after its repair. A report is null if there was no such room at that time.

    If an executor repaired nothing, ``after`` is the same object as ``before``. If it could not repair the room,
    ``after`` is a copy of ``before`` with a doubt added.
    """

    room_id: str
    before: RoomReport | None
    after: RoomReport | None


def resync_rooms(work: RoomsWork, room_ids: Sequence[str]) -> list[RoomAnswer]:
    """Checks these rooms and, if ``work.mend`` is true, repairs those that differ. May be repeated.

    Returns an answer for each room, in the order of ``room_ids``.
    """
    connection = psycopg2.connect(work.dsn, application_name="replsite spark resync", connect_timeout=10)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(_ALONE)
            cursor.execute(NO_LIMITS_IN_SESSION)
        return [_resync(connection, work, room_id) for room_id in room_ids]
    finally:
        connection.close()
        freeze_objects()


def _resync(connection: Any, work: RoomsWork, room_id: str) -> RoomAnswer:
    with collector_paused():  # all objects of a room live until it is done, so a collection would find nothing
        return _examined(connection, work, room_id)


def _examined(connection: Any, work: RoomsWork, room_id: str) -> RoomAnswer:
    found = _find_damage(connection, room_id, work.subject)
    if found is None or not work.mend or not found.report.of(work.subject):
        report = None if found is None else found.report
        return RoomAnswer(room_id, report, report)
    try:
        # One transaction: if the task is killed, the repair and the record of the repair are both stored, or neither
        # is.
        with connection, connection.cursor() as cursor:
            mended = repair_room(cursor, room_id, work.subject, found)
            if mended is not None and mended.moved is not None:
                cursor.execute(_TO_TELL, [room_id, list(mended.moved)])
    except RangesDisagree as error:  # the transaction was rolled back
        return RoomAnswer(room_id, found.report, left_as_it_is(found.report, error))
    before, found = None if mended is None else mended.before, _find_damage(connection, room_id)
    return RoomAnswer(room_id, before, None if found is None else found.report)


def _find_damage(connection: Any, room_id: str, subject: str | None = None) -> Found | None:
    with connection, connection.cursor() as cursor:
        cursor.execute(_ONE_VIEW)
        return find_damage(cursor, room_id, subject)
