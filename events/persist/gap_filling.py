"""Computes the states that are still unknown above a filled gap, for some thousand events at a time.

A backfilled event may be stored before its prev events. It then has no state and is shown to no user. When the missing
events arrive, or another server gives the state, ``persist`` authorises the events above the gap again, in the same
transaction. ``persist`` handles at most ``MOST_FILLED`` of these events. If there are more, the result of ``persist``
lists the room as unfinished, and the caller continues with ``resolve_room``. ``resolve_room`` is idempotent and may be
called at any time.
"""

from __future__ import annotations

from django.db import connections

from events.errors import UnknownRoom
from events.persist import next_rows
from events.persist.lock_and_read import lock_and_read
from events.persist.next_rows import NOTHING, Accepted
from events.persist.room_cache import StoredRoom
from events.persist.write_rows import write_rooms
from events.room_lock import room_transaction
from streams.conf import stream_settings
from streams.db.snapshots import begins_transaction

__all__ = ["resolve_room"]

#: Selects events without a state whose prev events all have one. ``resolve_room`` starts from these.
_RESOLVABLE = """
SELECT e.event_id FROM events_event e
WHERE e.room_id = %(room)s AND e.state_unresolved AND NOT EXISTS (
    SELECT FROM events_eventedge edge
    LEFT JOIN events_event prev ON prev.event_id = edge.prev_event_id AND prev.room_id = %(room)s
    WHERE edge.event_id = e.event_id AND prev.state_group IS NULL
) AND EXISTS (SELECT FROM events_eventedge edge WHERE edge.event_id = e.event_id) AND e.event_id > %(after)s
ORDER BY e.event_id LIMIT %(most)s
"""


def resolve_room(room_id: str, using: str | None = None, accepts: Accepted = NOTHING) -> int:
    """Computes the unknown states of a room's events as far as possible.

    Returns the number of events that got a state.

    Each transaction handles a few thousand events. ``accepts`` is that of the batches that stored the
    room's events. Raises ``UnknownRoom``.
    """
    alias = using or stream_settings().database
    total, before, after = 0, 0, ""
    while True:
        by_index = begins_transaction(alias)  # asked here, because inside the block there always is a transaction
        with room_transaction(
            alias, savepoint=True
        ):  # one for each round, so that writers get the room's lock in between
            found, last = _resolve(room_id, alias, after, accepts, by_index=by_index)
        total += found
        if last is None and total == before:
            return total
        # Events whose auth chains are incomplete stay. So a round without result goes on behind them, and a pass through
        # all events with a result is followed by another one.
        if last is None:
            before, after = total, ""
        elif not found:
            after = last


def _resolve(room_id: str, using: str, after: str, accepts: Accepted, *, by_index: bool) -> tuple[int, str | None]:
    # (number of events that got a state, the ID for ``after`` of the next call, or None)
    reading = lock_and_read([], using, rooms=[room_id], by_index=by_index)
    room = reading.rooms.get(room_id)
    if room is None:
        raise UnknownRoom(f"There is no room {room_id}.")
    # Searched under the lock, so that no other transaction gives these events a state in the meantime.
    with connections[using].cursor() as cursor:
        cursor.execute(_RESOLVABLE, {"room": room_id, "after": after, "most": next_rows.MOST_FILLED})
        seeds = [event_id for (event_id,) in cursor.fetchall()]
    if not seeds:
        return 0, None
    known = StoredRoom(room, using, reading)
    changes = next_rows.next_rows(known, [], to_resolve=seeds, accepts=accepts)
    write_rooms([(known, changes)], set(), using)
    return len(changes.filled.events), seeds[-1]
