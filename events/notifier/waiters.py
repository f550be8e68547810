"""Who waits for something that concerns them (pure): found among thousands by whom a change concerns.

A waiter is woken by changes of its user, and of the rooms that the user is joined to: as a set that it shares with the cache of
rooms, so a waiter in a thousand rooms takes no more memory than one in none. Bounded: ``add`` refuses beyond ``limit``.

Assumes one thread at a time; the caller holds a lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

__all__ = ["HotWaiter", "HotWaiters"]


@dataclass(slots=True, eq=False)
class HotWaiter:
    """Somebody who waits; ``wake`` is the caller's own. ``rooms`` are those that the user is joined to."""

    user_id: str
    rooms: frozenset[str]
    wake: Any
    woken: bool = False


class HotWaiters:
    """All who wait in a process, by user."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._of_user: dict[str, list[HotWaiter]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[HotWaiter]:
        for waiters in list(self._of_user.values()):
            yield from list(waiters)

    def add(self, waiter: HotWaiter) -> bool:
        """Let it wait; False when too many wait already."""
        if self._count >= self.limit:
            return False
        self._of_user.setdefault(waiter.user_id, []).append(waiter)
        self._count += 1
        return True

    def leave(self, waiter: HotWaiter) -> None:
        """It waits no more; does nothing when it is gone."""
        waiters = self._of_user.get(waiter.user_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            self._count -= 1
            if not waiters:
                del self._of_user[waiter.user_id]

    def take(self, users: Collection[str], rooms: AbstractSet[str]) -> list[HotWaiter]:
        """Those whom a change of these users or rooms concerns; they wait no more."""
        found = [waiter for user in users for waiter in self._of_user.get(user, ())]
        if rooms:
            found += [waiter for waiter in self if not rooms.isdisjoint(waiter.rooms)]
        return self._taken(found)

    def take_all(self) -> list[HotWaiter]:
        """Everybody."""
        return self._taken(list(self))

    def _taken(self, found: list[HotWaiter]) -> list[HotWaiter]:
        taken = []
        for waiter in found:
            if not waiter.woken:
                waiter.woken = True
                self.leave(waiter)
                taken.append(waiter)
        return taken
