"""Which raw TCP connections there are, and which of them give way when there are too many.

A connection counts from the moment it is accepted. While its client has not said what it wants it is *unknown*: to be silent,
to shake hands for ever or to say one byte is free for a client and must not keep others out. For one more, the oldest unknown
one gives way, of the address that has most of them. A client that the application knows keeps its place, so one address has its
share of the places and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from streams.replication.protocol.access import address_key
from streams.replication.transport.tls import Refusal

__all__ = ["Guest", "TcpPlaces"]


class Guest(Protocol):
    """A connection."""

    def abort(self) -> None: ...


class TcpPlaces:
    """Assumes one caller at a time."""

    def __init__(self, limit: int, of_address: int = 0) -> None:
        self._limit = limit
        #: 0: no share.
        self._share = of_address
        self._address_of: dict[Guest, str] = {}
        self._number_of: Counter[str] = Counter()
        self._unknown: dict[str, dict[Guest, None]] = {}

    def __len__(self) -> int:
        return len(self._address_of)

    def __iter__(self) -> Iterator[Guest]:
        return iter(list(self._address_of))

    def enter(self, guest: Guest, host: str) -> Refusal | None:
        """Takes a place for it, and returns None; returns why there is none."""
        address = address_key(host)
        if 0 < self._share <= self._number_of[address] and not self._gives_way(self._unknown.get(address)):
            return Refusal.ADDRESS_LIMIT
        if len(self) >= self._limit and not self._gives_way(max(self._unknown.values(), key=len, default=None)):
            return Refusal.CONNECTION_LIMIT
        self._put(guest, address)
        return None

    def hand_on(self, before: Guest, after: Guest) -> None:
        """One that was at the gate goes on as another, which is as unknown, and the youngest."""
        address = self._address_of.get(before, "")
        self.leave(before)
        self._put(after, address)

    def know(self, guest: Guest) -> None:
        """It does not give way any more."""
        address = self._address_of.get(guest)
        if address is not None:
            self._forget_unknown(guest, address)

    def leave(self, guest: Guest) -> None:
        """It is gone."""
        address = self._address_of.pop(guest, None)
        if address is None:
            return
        self._forget_unknown(guest, address)
        self._number_of[address] -= 1
        if not self._number_of[address]:
            del self._number_of[address]

    def _put(self, guest: Guest, address: str) -> None:
        self._address_of[guest] = address
        self._number_of[address] += 1
        self._unknown.setdefault(address, {})[guest] = None

    def _gives_way(self, guests: dict[Guest, None] | None) -> bool:
        """Ends the oldest of these; whether there was one."""
        oldest = next(iter(guests), None) if guests else None
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.abort()
        return True

    def _forget_unknown(self, guest: Guest, address: str) -> None:
        unknown = self._unknown.get(address, {})
        unknown.pop(guest, None)
        if not unknown:
            self._unknown.pop(address, None)
