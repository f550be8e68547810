"""Places for raw TCP connections, and the choice of the connection to close when there are too many.

A connection takes a place when it is accepted. The connection is *unknown* until its client has sent its name or has
asked for facts. A client has no cost if it is silent, never ends a handshake, or sends a single byte. So unknown
connections must not keep other clients out. To make room, the server finds the address with the most unknown
connections, and closes the oldest of these connections. A known connection keeps its place. Therefore each address may
have only a share of the places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from streams.replication.protocol.access import address_key
from streams.replication.transport.tls import Refusal


class PlacedConnection(Protocol):
    """A connection that can be closed at once."""

    def abort(self) -> None: ...
    def give_way(self) -> None: ...


class TcpPlaces:
    """The places of one server: at most ``limit``, and at most ``of_address`` for one address (0: no limit per address).

    Calls must not run concurrently.
    """

    def __init__(self, limit: int, of_address: int = 0) -> None:
        self._limit = limit
        #: 0: no limit per address.
        self._share = of_address
        self._address_of: dict[PlacedConnection, str] = {}
        self._number_of: Counter[str] = Counter()
        #: Unknown connections by address, each address's oldest first.
        self._unknown: dict[str, dict[PlacedConnection, None]] = {}

    def __len__(self) -> int:
        return len(self._address_of)

    def __iter__(self) -> Iterator[PlacedConnection]:
        return iter(list(self._address_of))

    def enter(self, guest: PlacedConnection, host: str) -> Refusal | None:
        """Takes a place for a new, unknown connection and returns None. If there is no place, returns the reason."""
        address = address_key(host)
        if 0 < self._share <= self._number_of[address] and not self._gives_way(self._unknown.get(address)):
            return Refusal.ADDRESS_LIMIT
        if len(self) >= self._limit and not self._gives_way(max(self._unknown.values(), key=len, default=None)):
            return Refusal.CONNECTION_LIMIT
        self._address_of[guest] = address
        self._number_of[address] += 1
        self._unknown.setdefault(address, {})[guest] = None
        return None

    def know(self, guest: PlacedConnection) -> None:
        """Marks a connection as known, so that it is not closed to make room. Does nothing if the connection has no place."""
        address = self._address_of.get(guest)
        if address is not None:
            self._forget_unknown(guest, address)

    def leave(self, guest: PlacedConnection) -> None:
        """Releases the place of a connection. Does nothing if the connection has no place."""
        address = self._address_of.pop(guest, None)
        if address is None:
            return
        self._forget_unknown(guest, address)
        self._number_of[address] -= 1
        if not self._number_of[address]:
            del self._number_of[address]

    def _gives_way(self, guests: dict[PlacedConnection, None] | None) -> bool:
        oldest = next(iter(guests), None) if guests else None
        if oldest is None:
            return False
        # The place is released here, because it is needed now, and the loss of the connection is reported only later.
        self.leave(oldest)
        oldest.give_way()
        return True

    def _forget_unknown(self, guest: PlacedConnection, address: str) -> None:
        unknown = self._unknown.get(address, {})
        unknown.pop(guest, None)
        if not unknown:
            self._unknown.pop(address, None)
