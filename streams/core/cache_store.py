"""The values of one cached function (pure): bounded, least recently used out first, and never older than an invalidation.

A value that was computed before its key was dropped and comes back afterwards must not be kept: it may be of before. So
each computation holds a *ticket*, and dropping a key spoils the tickets that are out for it. That is a generation counter for
each key that is being computed, and costs nothing for the others. Called from many threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from streams.core.bounded import BoundedDict

__all__ = ["MISSING", "CacheCounts", "CacheStore", "Key", "Ticket"]

#: The arguments that a value was computed from.
Key = tuple[str, ...]
#: There is no value.
MISSING: Any = object()


@dataclass(slots=True)
class CacheCounts:
    """What happened to a cache since the process began."""

    hits: int = 0
    misses: int = 0
    invalidations: int = 0
    evictions: int = 0
    spoiled: int = 0
    """Values that were not kept, because their key was dropped while they were computed."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A computation that is under way. ``owner`` is whose own drops do not spoil it."""

    key: Key
    owner: object = None
    is_spoiled: bool = False


class CacheStore:
    """Values by key, up to a total weight; each weighs 1 unless ``weigh`` says otherwise."""

    def __init__(self, limit: int, weigh: Callable[[Any], int] | None = None) -> None:
        self.counts = CacheCounts()
        self._values: BoundedDict[Key, Any] = BoundedDict(limit, weigh)
        self._tickets: dict[Key, list[Ticket]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Any:
        """The value, or ``MISSING``; counted."""
        with self._lock:
            value = self._values.get(key, MISSING)
            if value is MISSING:
                self.counts.misses += 1
            else:
                self.counts.hits += 1
                self._values.move_to_end(key)
            return value

    def begin(self, key: Key, owner: object = None) -> Ticket:
        """A computation begins; ``finish`` or ``abandon`` ends it."""
        ticket = Ticket(key, owner)
        with self._lock:
            self._tickets.setdefault(key, []).append(ticket)
        return ticket

    def finish(self, ticket: Ticket, value: Any) -> bool:
        """Keep the value, unless its key was dropped since the computation began."""
        with self._lock:
            self._hand_back(ticket)
            if ticket.is_spoiled:
                self.counts.spoiled += 1
                return False
            self.counts.evictions += self._values.put(ticket.key, value)
            return True

    def abandon(self, ticket: Ticket) -> None:
        """The computation brought no value."""
        with self._lock:
            self._hand_back(ticket)

    def drop(self, key: Key, by: object = None) -> None:
        """The value is of before; so is what is being computed, but for what ``by`` itself does."""
        with self._lock:
            self.counts.invalidations += 1
            self._values.pop(key, None)
            self._spoil(self._tickets.get(key, ()), by)

    def drop_all(self, by: object = None) -> None:
        """Every value is of before."""
        with self._lock:
            self.counts.invalidations += 1
            self._values.clear()
            self._spoil((ticket for tickets in self._tickets.values() for ticket in tickets), by)

    def spoil(self, key: Key | None, owner: object) -> None:
        """What ``owner`` has begun to compute of that key, or of all, is of before; values that are kept stay."""
        with self._lock:
            keys = list(self._tickets) if key is None else [key]
            for ticket in (ticket for one in keys for ticket in self._tickets.get(one, ())):
                if ticket.owner is owner:
                    ticket.is_spoiled = True

    def after_fork(self) -> None:
        """In a child: empty, with a lock that nobody holds."""
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
