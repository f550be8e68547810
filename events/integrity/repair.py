"""Checks one room, or repairs it, in this process and through Django's connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from events.declarations import CACHE_NAME
from events.integrity.compare import RoomReport
from events.integrity.room_mending import Resynced, RoomTransactions, check, resync
from events.models import Room
from events.persist.room_cache import clear_caches
from streams.caches import invalidate, invalidate_room_state
from streams.db.consistent_read import long_transaction, read_only_snapshot

_ROOMS_AT_ONCE = 1_000


def _transactions(using: str) -> RoomTransactions:
    snapshot = partial(read_only_snapshot, using, is_long=True)
    return RoomTransactions(snapshot, partial(long_transaction, using), _notify)


def _notify(_cursor: Any, room_id: str, users: Sequence[str]) -> None:
    invalidate_room_state(room_id, users)
    invalidate(CACHE_NAME)


def check_room(room_id: str, using: str = "default") -> RoomReport | None:
    """Returns the report on all stored rows of a room, read in one snapshot, or None if there is no such room."""
    return check(_transactions(using), room_id)


def resync_room(room_id: str, subject: str, using: str = "default", *, dry_run: bool = False) -> Resynced | None:
    """Repairs the differences of a subject as ``room_mending.resync`` does.

    ``subject`` is one of ``compare.SUBJECTS``, or ``compare.EVERYTHING``. With ``dry_run`` nothing is written.
    """
    done = resync(_transactions(using), room_id, subject, mend=not dry_run)
    if done is not None and done.before is not done.after:
        clear_caches()  # this process may have cached events before the repair
    return done


def all_rooms(using: str) -> Iterator[str]:
    """Yields the IDs of all rooms in ascending order. Reads the IDs in parts, so that only one part is in memory."""
    found = [""]
    while found:
        after = Room.objects.using(using).filter(room_id__gt=found[-1]).order_by("room_id")
        found = list(after.values_list("room_id", flat=True)[:_ROOMS_AT_ONCE])
        yield from found
