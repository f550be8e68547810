"""Checks one room, or repairs it in a transaction that holds the room's lock.

Both run in this process, through Django's connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from events.errors import RangesDisagree
from events.integrity.compare import RoomReport
from events.integrity.room_mending import find_damage, left_as_it_is, repair_room
from events.maintenance.restore import invalidate_cached_events
from events.models import Room
from events.persist.room_cache import clear_caches
from streams.caching import invalidate_room_state
from streams.db.consistent_read import long_transaction, read_only_snapshot
from streams.runtime.gc_pause import collector_paused

__all__ = ["Resynced", "all_rooms", "check_room", "resync_room"]

_ROOMS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Resynced:
    """The reports on a room before and after a repair."""

    before: RoomReport
    after: RoomReport


def check_room(room_id: str, using: str = "default") -> RoomReport | None:
    """Returns the report on all that is stored of a room, read in one snapshot; null if there is no such room."""
    with read_only_snapshot(using, is_long=True) as cursor, collector_paused():
        found = find_damage(cursor, room_id)
    return None if found is None else found.report


def resync_room(room_id: str, subject: str, using: str = "default", *, dry_run: bool = False) -> Resynced | None:
    """Repairs the differences of a subject, and returns the reports before and after; null if there is no such room.

    ``subject`` is one of ``compare.SUBJECTS``, or ``compare.EVERYTHING``. Without differences of the subject, and with
    ``dry_run``, both reports are the same and the room is never locked. If right ranges would not fit the current state
    (``RangesDisagree``), nothing is written and the report after has the error as a doubt.
    """
    with read_only_snapshot(using, is_long=True) as cursor, collector_paused():
        found = find_damage(cursor, room_id, subject)
    if found is None:
        return None
    if dry_run or not found.report.of(subject):
        return Resynced(found.report, found.report)
    try:
        with long_transaction(using) as cursor:
            mended = repair_room(cursor, room_id, subject, found)
            # In the same transaction, so that no process sees the repaired rows without dropping what it cached.
            if mended is not None and mended.moved is not None:
                invalidate_room_state(room_id, mended.moved)
                invalidate_cached_events()
    except RangesDisagree as error:
        return Resynced(found.report, left_as_it_is(found.report, error))
    del found  # it may be large
    clear_caches()  # this process may have cached events before the repair
    after = check_room(room_id, using)
    return None if mended is None or after is None else Resynced(mended.before, after)


def all_rooms(using: str) -> Iterator[str]:
    """Yields the IDs of all rooms in ascending order. Reads them in parts, so that they are never all in memory."""
    found = [""]
    while found:
        after = Room.objects.using(using).filter(room_id__gt=found[-1]).order_by("room_id")
        found = list(after.values_list("room_id", flat=True)[:_ROOMS_AT_ONCE])
        yield from found
