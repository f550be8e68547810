"""Plans the compression of rooms in Spark executors. Needs no Django."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial

from events.maintenance.group_plan import PlannedRoom, plan_room
from pipeline.connections import connect
from streams.db.long_transactions import NO_LIMITS_IN_SESSION
from streams.runtime.gc_pause import freeze_objects

__all__ = ["plan_rooms"]

#: There are as many tasks as cores, so no query may use a second core.
_SESSION = "SET max_parallel_workers_per_gather = 0"


def plan_rooms(dsn: str, room_ids: Sequence[str]) -> list[PlannedRoom]:
    """Plans the compression of the rooms ``room_ids``. Returns the plans in the same order. Changes nothing.

    Each room is read in its own snapshot.
    """
    with closing(connect(dsn, "replsite spark compress")) as connection:
        connection.set_session("REPEATABLE READ", readonly=True)
        found = []
        for room_id in room_ids:
            with connection, connection.cursor() as cursor:
                cursor.execute(_SESSION)
                cursor.execute(NO_LIMITS_IN_SESSION)
                found.append(plan_room(cursor, room_id, partial(connection.cursor, name="groups")))
    freeze_objects()
    return found
