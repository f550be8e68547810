"""Finds the waiting callers that a change concerns, among thousands (pure).

A waiter is woken by a change of its user, or of a room that the user is joined to. Waiters share the set of rooms with
the cache of rooms. So a waiter whose user is in a thousand rooms takes no more memory than a waiter whose user is in no
room. The number of waiters is bounded.

Assumes that the caller holds a lock.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from streams.waiting.waiters import Waiters


@dataclass(slots=True, eq=False)
class RoutedWaiter:
    """A caller that waits for news about one user.

    ``rooms`` are the rooms that this user is joined to.

    ``wake`` is the caller's event or future.
    """

    user_id: str
    rooms: frozenset[str]
    wake: Any


class RoutedWaiters(Waiters[RoutedWaiter, str]):
    def __init__(self, limit: int) -> None:
        super().__init__(lambda waiter: (waiter.user_id, 0))
        self.limit = limit

    def add(self, waiter: RoutedWaiter) -> bool:
        """Adds a waiter. Returns false, and adds nothing, if ``limit`` callers wait already."""
        return len(self) < self.limit and super().add(waiter)

    def remove_concerned(self, users: Collection[str], rooms: AbstractSet[str]) -> list[RoutedWaiter]:
        found = [waiter for user in users for waiter in self.pop(user)]
        if rooms:
            # Those that were taken above wait no more, so none is found twice.
            found += [waiter for waiter in self if not rooms.isdisjoint(waiter.rooms) and self.leave(waiter)]
        return found
