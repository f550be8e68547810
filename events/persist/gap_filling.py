"""The rest of a filled gap: events whose state can be worked out by now, some thousands at a time.

A backfilled event may be stored before what it builds on; it has no state then and nobody is shown it. When that comes, or the
state is given from outside, ``persist`` judges everything above again in the same transaction, up to ``MOST_FILLED`` events. A
room that it names as unfinished is finished here. Nothing is done twice, so it may be called at any time.
"""

from __future__ import annotations

from django.db import connections, transaction

from events.errors import UnknownRoom
from events.persist import room_batch
from events.persist.lock_and_read import lock_and_read
from events.persist.write_rows import write_rooms
from streams.conf import stream_settings

__all__ = ["resolve_room"]

#: Events without state of which all prev events have one: where a room can be resolved from.
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
    """Give all events of a room their state that can have one; returns how many. A transaction for each few thousand.

    Raises ``UnknownRoom``.
    """
    alias = using or stream_settings().database
    total = 0
    while True:
        with transaction.atomic(using=alias):
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
    """Events of a room whose state can be worked out from that of their prev events."""
    with connections[using].cursor() as cursor:
        cursor.execute(_RESOLVABLE, {"room": room_id, "most": room_batch.MOST_FILLED})
        return [event_id for (event_id,) in cursor.fetchall()]
