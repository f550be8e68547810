"""Checks and repairs rooms on Spark executors, with the functions that a process of the site uses for one room.

A room is compared in one snapshot of the database. It is repaired in a transaction of its own, under the room's lock. A
task holds one room at a time.

After a repair, other processes may have to drop their cached values of the room. A fact on the stream ``caches`` makes
these processes do so, but executors cannot append facts. So the transaction of the repair also inserts a row for the
room (``pipeline.models.MendedRoom``). The driver appends the fact later (``pipeline.maintenance.many_rooms``), even if
the task or the whole job was killed meanwhile.

Needs no Django.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from events.integrity.compare import RoomReport
from events.integrity.room_mending import Resynced, RoomTransactions, resync
from pipeline.connections import connect
from streams.db.long_transactions import NO_LIMITS_IN_SESSION
from streams.runtime.gc_pause import freeze_objects

__all__ = ["RoomAnswer", "RoomsWork", "resync_rooms"]

_ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
#: No parallel workers. There are as many tasks as cores, so a second core for one query would be taken from another task.
_ALONE = "SET max_parallel_workers_per_gather = 0"
_RECORD_MENDED = "INSERT INTO pipeline_mendedroom (room_id, user_ids) VALUES (%s, %s::text[])"


@dataclass(frozen=True, slots=True)
class RoomsWork:
    """The arguments of a task, the same for all tasks of a job."""

    dsn: str
    subject: str
    mend: bool


@dataclass(frozen=True, slots=True)
class RoomAnswer:
    """The reports on a room before and after its repair. Both reports are None if there was no such room.

    If nothing was repaired, ``after`` is the same object as ``before``. If the room could not be repaired, ``after`` is a
    copy of ``before`` with the reason added to its doubts.
    """

    room_id: str
    before: RoomReport | None
    after: RoomReport | None

    @classmethod
    def of(cls, room_id: str, done: Resynced | None) -> RoomAnswer:
        """Returns the answer for a room. ``done`` is the result of ``resync``, or None if there is no such room."""
        return cls(room_id, *((None, None) if done is None else (done.before, done.after)))


def resync_rooms(work: RoomsWork, room_ids: Sequence[str]) -> list[RoomAnswer]:
    """Checks the rooms ``room_ids``. If ``work.mend`` is true, repairs the rooms with differences. May be repeated.

    Returns an answer for each room, in the order of ``room_ids``.
    """
    connection = connect(work.dsn, "replsite spark resync")
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(_ALONE)
            cursor.execute(NO_LIMITS_IN_SESSION)
        rooms = RoomTransactions(
            partial(_transaction, connection, _ONE_SNAPSHOT), partial(_transaction, connection), _record_mended
        )
        return [RoomAnswer.of(room_id, resync(rooms, room_id, work.subject, mend=work.mend)) for room_id in room_ids]
    finally:
        connection.close()
        freeze_objects()


@contextmanager
def _transaction(connection: Any, first: str = "") -> Iterator[Any]:
    with connection, connection.cursor() as cursor:
        if first:
            cursor.execute(first)
        yield cursor


def _record_mended(cursor: Any, room_id: str, moved: Sequence[str]) -> None:
    cursor.execute(_RECORD_MENDED, [room_id, list(moved)])
