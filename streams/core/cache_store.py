"""Stores the values of one cached function (pure). The least recently used are evicted first.

No value is kept that was computed before its key was invalidated. Each computation holds a *ticket*, and an invalidation
spoils the tickets that are out for its key. That amounts to a generation counter for each key under computation, and
costs nothing for other keys. May be called from many threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from streams.core.bounded import BoundedDict

__all__ = ["MISSING", "CacheCounts", "CacheStore", "Key", "Ticket"]

#: The arguments from which a value was computed.
Key = tuple[str, ...]
#: Returned for a key without a value.
MISSING: Any = object()


@dataclass(slots=True)
class CacheCounts:
    """The counts of one cache since the process began."""

    hits: int = 0
    misses: int = 0
    invalidations: int = 0
    evictions: int = 0
    spoiled: int = 0
    """Values that were not stored, because their key was invalidated while they were computed."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A computation that is under way. Invalidations by its ``owner`` do not spoil it, except through ``CacheStore.spoil``."""

    key: Key
    owner: object = None
    is_spoiled: bool = False


class CacheStore:
    """Values by key, up to a total weight. Each value weighs 1 unless ``weigh`` is given."""

    def __init__(self, limit: int, weigh: Callable[[Any], int] | None = None) -> None:
        self.counts = CacheCounts()
        self._values: BoundedDict[Key, Any] = BoundedDict(limit, weigh)
        self._tickets: dict[Key, list[Ticket]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Any:
        """Returns the value, or ``MISSING``, and counts a hit or a miss."""
        with self._lock:
            value = self._values.get(key, MISSING)
            if value is MISSING:
                self.counts.misses += 1
            else:
                self.counts.hits += 1
                self._values.move_to_end(key)
            return value

    def begin(self, key: Key, owner: object = None) -> Ticket:
        """Returns a ticket for a computation that begins. ``finish`` or ``abandon`` must end it."""
        ticket = Ticket(key, owner)
        with self._lock:
            self._tickets.setdefault(key, []).append(ticket)
        return ticket

    def finish(self, ticket: Ticket, value: Any) -> bool:
        """Stores the value, unless its key was invalidated since the computation began. Returns true if it was stored."""
        with self._lock:
            self._hand_back(ticket)
            if ticket.is_spoiled:
                self.counts.spoiled += 1
                return False
            self.counts.evictions += self._values.put(ticket.key, value)
            return True

    def abandon(self, ticket: Ticket) -> None:
        """Ends a computation that returned no value."""
        with self._lock:
            self._hand_back(ticket)

    def drop(self, key: Key, by: object = None) -> None:
        """Removes the value of a key, and spoils the computations of it, except those whose owner is ``by``."""
        with self._lock:
            # A computes the value of before, B changes the row and invalidates the key, A comes back with the old value. B finds
            # nothing stored, so removal alone would not help. A's ticket is spoiled, and ``finish`` does not store A's value.
            self.counts.invalidations += 1
            self._values.pop(key, None)
            self._spoil(self._tickets.get(key, ()), by)

    def drop_all(self, by: object = None) -> None:
        """Removes every value, and spoils every computation, except those whose owner is ``by``."""
        with self._lock:
            self.counts.invalidations += 1
            self._values.clear()
            self._spoil((ticket for tickets in self._tickets.values() for ticket in tickets), by)

    def spoil(self, key: Key | None, owner: object) -> None:
        """Spoils the computations of ``owner`` for that key, or for all keys. Stored values stay."""
        with self._lock:
            keys = list(self._tickets) if key is None else [key]
            for ticket in (ticket for one in keys for ticket in self._tickets.get(one, ())):
                if ticket.owner is owner:
                    ticket.is_spoiled = True

    def after_fork(self) -> None:
        """Empties the store in a child, and makes a new lock: the parent's may be held."""
        self._lock = threading.Lock()
        self._values.clear()
        self._tickets.clear()
        self.counts = CacheCounts()

    def _hand_back(self, ticket: Ticket) -> None:
        tickets = self._tickets.get(ticket.key, [])
        if ticket in tickets:
            tickets.remove(ticket)
            if not tickets:
                del self._tickets[ticket.key]

    @staticmethod
    def _spoil(tickets: Iterable[Ticket], by: object) -> None:
        for ticket in tickets:
            if by is None or ticket.owner is not by:
                ticket.is_spoiled = True
