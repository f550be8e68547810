"""The rest of a filled gap: events whose state can be worked out by now, some thousands at a time.

``persist`` does this itself for what lies above the events that it stores, up to a bound; a room that it names as unfinished is
finished here. Nothing is done twice, so it may be called at any time.
"""

from __future__ import annotations

from django.db import transaction

from events.errors import UnknownRoom
from events.persist.gap_filling import resolvable
from events.persist.lock_and_read import lock_and_read
from events.persist.room_batch import RoomBatch
from events.persist.write_rows import write_rooms
from streams.conf import stream_settings

__all__ = ["resolve_room"]


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
    seeds = resolvable(room_id, using)
    if not seeds:
        return 0
    batch = RoomBatch(reading, room, [], using)
    batch.again = seeds
    changes = batch.work_out()
    write_rooms([(room, batch.stored, changes)], set(), using)
    return len(changes.filled.events)
