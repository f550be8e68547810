"""Callers that wait for something that concerns them (pure): found among thousands by whom a change concerns.

A waiter is woken by changes of its user, and of the rooms that the user is joined to: as a set that it shares with the cache of
rooms, so a waiter in a thousand rooms takes no more memory than one in none. Bounded: ``add`` refuses beyond ``limit``.

Assumes one thread at a time; the caller holds a lock.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from streams.waiting.waiters import Waiters

__all__ = ["HotWaiter", "HotWaiters"]


@dataclass(slots=True, eq=False)
class HotWaiter:
    """A caller that waits; ``wake`` is its own. ``rooms`` are those that the user is joined to."""

    user_id: str
    rooms: frozenset[str]
    wake: Any


class HotWaiters(Waiters[HotWaiter, str]):
    """All who wait in a process, by user."""

    def __init__(self, limit: int) -> None:
        super().__init__(lambda waiter: (waiter.user_id, 0))
        self.limit = limit

    def add(self, waiter: HotWaiter) -> bool:
        """Let it wait; False when too many wait already."""
        return len(self) < self.limit and super().add(waiter)

    def take_concerned(self, users: Collection[str], rooms: AbstractSet[str]) -> list[HotWaiter]:
        """Those whom a change of these users or rooms concerns; they wait no more."""
        found = [waiter for user in users for waiter in self.take(user)]
        if rooms:
            found += [waiter for waiter in self if not rooms.isdisjoint(waiter.rooms) and self.leave(waiter)]
        return found
