"""The rooms that users are joined to, as many as there is room for (pure): bounded by users, and by rooms of all together.

A ``CacheStore``, so rooms that were read before a change and come in after it are not kept. Called from many threads.
"""

from __future__ import annotations

from typing import Any

from streams.core.cache_store import CacheStore, Ticket

__all__ = ["ROOMS_PER_USER", "RoomsOfUsers"]

#: So many rooms per user that may be remembered are kept, of all users together.
ROOMS_PER_USER = 100


class RoomsOfUsers(CacheStore):
    """Sets of rooms by user; those asked for least recently go first."""

    def __init__(self, most_users: int) -> None:
        super().__init__(most_users)
        self._most_rooms = most_users * ROOMS_PER_USER
        self._added = 0
        """At least the number of rooms that are kept."""

    @property
    def rooms(self) -> int:
        """How many rooms are kept, counted once per user."""
        with self._lock:
            return sum(map(len, self._values.values()))

    def finish(self, ticket: Ticket, value: Any) -> bool:
        """Keep the rooms, unless the user's membership changed since the computation began."""
        kept = super().finish(ticket, value)
        with self._lock:
            self._added += len(value)
            if self._added > self._most_rooms:
                self._make_room()
        return kept

    def _make_room(self) -> None:
        """Count anew; when there are too many, throw out a tenth more than needed, so that this is not done each time."""
        self._added = sum(map(len, self._values.values()))
        if self._added > self._most_rooms * 9 // 10:
            while self._values and self._added > self._most_rooms * 8 // 10:
                _, rooms = self._values.popitem(last=False)
                self._added -= len(rooms)
                self.counts.evictions += 1
