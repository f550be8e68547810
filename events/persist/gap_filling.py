"""Computes the states that are still unknown above a filled gap, for some thousand events at a time.

A backfilled event may be stored before the events that it builds on. It has no state then and is shown to nobody. When
the missing events arrive, or the state is given from outside, ``persist`` authorises the events above again in the same
transaction. ``persist`` handles at most ``MOST_FILLED`` of them. If more are left, it returns the room as unfinished,
and the caller continues with ``resolve_room``. ``resolve_room`` is idempotent and may be called at any time.
"""

from __future__ import annotations

from django.db import connections, transaction

from events.errors import UnknownRoom
from events.persist import room_batch
from events.persist.lock_and_read import lock_and_read
from events.persist.write_rows import write_rooms
from streams.conf import stream_settings

__all__ = ["resolve_room"]

#: Events without state whose prev events all have one: the starting points.
_RESOLVABLE = """
SELECT e.event_id FROM events_event e
WHERE e.room_id = %(room)s AND e.state_unresolved AND NOT EXISTS (
    SELECT FROM events_eventedge edge
    LEFT JOIN events_event prev ON prev.event_id = edge.prev_event_id AND prev.room_id = %(room)s
    WHERE edge.event_id = e.event_id AND prev.state_group IS NULL
) AND EXISTS (SELECT FROM events_eventedge edge WHERE edge.event_id = e.event_id)
LIMIT %(most)s
"""


def resolve_room(room_id: str, using: str | None = None) -> int:
    """Computes the state of all events of a room that can have one, and returns their number.

    Each transaction handles a few thousand events. Raises ``UnknownRoom``.
    """
    alias = using or stream_settings().database
    total = 0
    while True:
        with transaction.atomic(using=alias):  # one for each round, so that writers get the room's lock in between
            found = _resolve(room_id, alias)
        if not found:
            return total
        total += found


def _resolve(room_id: str, using: str) -> int:
    reading = lock_and_read([], using, rooms=[room_id])
    room = reading.rooms.get(room_id)
    if room is None:
        raise UnknownRoom(f"There is no room {room_id}.")
    seeds = _resolvable(room_id, using)
    if not seeds:
        return 0
    batch = room_batch.RoomBatch(reading, room, [], using)
    batch.again = seeds
    changes = batch.work_out()
    write_rooms([(room, batch.stored, changes)], set(), using)
    return len(changes.filled.events)


def _resolvable(room_id: str, using: str) -> list[str]:
    """Returns the IDs of events that have no state although all their prev events have one."""
    with connections[using].cursor() as cursor:
        cursor.execute(_RESOLVABLE, {"room": room_id, "most": room_batch.MOST_FILLED})
        return [event_id for (event_id,) in cursor.fetchall()]
