"""Stores the values of one cached function (pure). The least recently used are evicted first.

A value is not stored if its key was invalidated while the value was computed. To know this, each computation holds a
*ticket* for its key. An invalidation marks the tickets of its key as *spoiled*, and the value of a spoiled ticket is
not stored. If no computation for a key is under way, the key has no ticket, and an invalidation leaves no record. Many
threads may use a store at the same time.
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
    """The numbers of hits, misses and other events of one cache since the process began."""

    hits: int = 0
    misses: int = 0
    invalidations: int = 0
    evictions: int = 0
    spoiled: int = 0
    """Values that were not stored, because their key was invalidated while they were computed."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A computation that is under way. ``owner`` is the database connection whose queries the computation uses, or None.

    Invalidations by that owner do not spoil the ticket, except through ``CacheStore.spoil``.
    """

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
        """Returns a ticket for a computation that begins. The caller must pass the ticket to ``finish`` or ``abandon``."""
        ticket = Ticket(key, owner)
        with self._lock:
            self._tickets.setdefault(key, []).append(ticket)
        return ticket

    def finish(self, ticket: Ticket, value: Any) -> bool:
        """Stores a computed value unless the computation's ticket is spoiled. Returns true if the value was stored."""
        with self._lock:
            self._hand_back(ticket)
            if ticket.is_spoiled:
                self.counts.spoiled += 1
                return False
            self.counts.evictions += self._values.put(ticket.key, value)
            return True

    def abandon(self, ticket: Ticket) -> None:
        """Ends a computation that produced no value."""
        with self._lock:
            self._hand_back(ticket)

    def drop(self, key: Key, by: object = None) -> None:
        """Removes the value of a key, and spoils the key's tickets, except the tickets of the owner ``by``."""
        with self._lock:
            # A computes the value from the old row. B changes the row and invalidates the key. Then A finishes with the old
            # value. B found nothing stored, so removal alone would not help. B spoils A's ticket, and ``finish`` does not store
            # A's value.
            self.counts.invalidations += 1
            self._values.pop(key, None)
            self._spoil(self._tickets.get(key, ()), by)

    def drop_all(self, by: object = None) -> None:
        """Removes every value, and spoils every ticket, except the tickets of the owner ``by``."""
        with self._lock:
            self.counts.invalidations += 1
            self._values.clear()
            self._spoil((ticket for tickets in self._tickets.values() for ticket in tickets), by)

    def spoil(self, key: Key | None, owner: object) -> None:
        """Spoils the tickets of ``owner`` for that key, or for all keys if ``key`` is None. Stored values stay."""
        with self._lock:
            keys = list(self._tickets) if key is None else [key]
            for ticket in (ticket for one in keys for ticket in self._tickets.get(one, ())):
                if ticket.owner is owner:
                    ticket.is_spoiled = True

    def after_fork(self) -> None:
        """Empties the store in a forked child. Makes a new lock, because a thread of the parent may hold the old one."""
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
