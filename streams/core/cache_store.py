"""Stores values that are computed when they are first needed (pure). The least recently used are evicted first.

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

#: The arguments from which a value was computed.
Key = tuple[str, ...]
#: Returned for a key without a value.
MISSING: Any = object()


@dataclass(slots=True, eq=False)
class Ticket:
    """A computation that is under way."""

    key: Key
    is_spoiled: bool = False


class CacheStore:
    """Values by key, up to a total weight. Each value weighs 1 unless ``weigh`` is given."""

    def __init__(self, limit: int, weigh: Callable[[Any], int] | None = None) -> None:
        self._values: BoundedDict[Key, Any] = BoundedDict(limit, weigh)
        self._tickets: dict[Key, list[Ticket]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Any:
        """Returns the value, or ``MISSING``."""
        with self._lock:
            value = self._values.get(key, MISSING)
            if value is not MISSING:
                self._values.move_to_end(key)
            return value

    def start(self, key: Key) -> Ticket:
        """Returns a ticket for a computation that starts. The caller must pass the ticket to ``finish`` or ``abandon``."""
        ticket = Ticket(key)
        with self._lock:
            self._tickets.setdefault(key, []).append(ticket)
        return ticket

    def finish(self, ticket: Ticket, value: Any) -> bool:
        """Stores a computed value unless the computation's ticket is spoiled. Returns true if the value was stored."""
        with self._lock:
            self._hand_back(ticket)
            if not ticket.is_spoiled:
                self._values.put(ticket.key, value)
            return not ticket.is_spoiled

    def abandon(self, ticket: Ticket) -> None:
        """Ends a computation that produced no value."""
        with self._lock:
            self._hand_back(ticket)

    def drop(self, key: Key) -> None:
        """Removes the value of a key, and spoils the key's tickets."""
        with self._lock:
            # A computes the value from the old row. B changes the row and invalidates the key. Then A finishes with the old
            # value. B found nothing stored, so removal alone would not help. B spoils A's ticket, and ``finish`` does not store
            # A's value.
            self._values.pop(key, None)
            self._spoil(self._tickets.get(key, ()))

    def drop_all(self) -> None:
        """Removes every value, and spoils every ticket."""
        with self._lock:
            self._values.clear()
            for tickets in self._tickets.values():
                self._spoil(tickets)

    def _hand_back(self, ticket: Ticket) -> None:
        tickets = self._tickets.get(ticket.key, [])
        if ticket in tickets:
            tickets.remove(ticket)
            if not tickets:
                del self._tickets[ticket.key]

    @staticmethod
    def _spoil(tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            ticket.is_spoiled = True
