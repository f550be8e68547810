"""Callers that wait for a position or for news (pure). A move looks only at the waiters that it concerns, so many are cheap.

``Waiters`` takes an *index function*. It maps a waiter to what it waits for next: a key, and the number that the key must
reach. A waiter for a token waits for its base (the linear position), then for each writer's entry in turn.

Assumes one thread at a time: the caller holds a lock.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from streams.core.tokens import VectorToken

__all__ = ["Seen", "TokenWaiter", "Waiters", "missing"]

_MANY_LEFT = 64
W = TypeVar("W", bound=Hashable)
Key = TypeVar("Key", bound=Hashable)


class Waiters(Generic[W, Key]):
    """A collection of waiters by key and number. Each waiter is in one heap at a time.

    A waiter that left stays in its heap until many have left. Then all of those are removed at once.
    """

    def __init__(self, index: Callable[[W], tuple[Key, int] | None]) -> None:
        self._index = index
        self._waiting: dict[W, None] = {}  # a dictionary keeps the order
        self._heaps: dict[Key, list[tuple[int, int, W]]] = {}
        self._order = itertools.count()
        self._left = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[W]:
        return iter(list(self._waiting))

    @property
    def keys(self) -> list[Key]:
        """The keys that are waited for."""
        return list(self._heaps)

    def add(self, waiter: W) -> bool:
        """Adds a waiter for what it waits for next. Returns false, and does not add it, if that is nothing."""
        place = self._index(waiter)
        if place is None:
            return False
        key, number = place
        heapq.heappush(self._heaps.setdefault(key, []), (number, next(self._order), waiter))
        self._waiting[waiter] = None
        return True

    def leave(self, waiter: W) -> bool:
        """Removes a waiter. Returns false if it was not waiting."""
        if waiter not in self._waiting:
            return False
        del self._waiting[waiter]
        self._left += 1
        if self._left > max(_MANY_LEFT, len(self)):
            self._throw_out()
        return True

    def take(self, key: Key, upto: int = 0) -> list[W]:
        """Removes and returns the waiters that wait for ``key`` to reach ``upto`` or less.

        The caller may add them again, for what they wait for next.
        """
        heap, taken = self._heaps.get(key, []), []
        while heap and heap[0][0] <= upto:
            waiter = heapq.heappop(heap)[2]
            if waiter in self._waiting:
                del self._waiting[waiter]
                taken.append(waiter)
            else:
                self._left -= 1
        if not heap:
            self._heaps.pop(key, None)
        return taken

    def take_all(self) -> list[W]:
        """Removes and returns all waiters."""
        taken, self._waiting, self._heaps, self._left = list(self._waiting), {}, {}, 0
        return taken

    def _throw_out(self) -> None:
        for key, heap in list(self._heaps.items()):
            heap[:] = [entry for entry in heap if entry[2] in self._waiting]
            heapq.heapify(heap)
            if not heap:
                del self._heaps[key]
        self._left = 0


class Seen(Protocol):
    """A stream's positions as a process sees them. They never go down."""

    @property
    def linear(self) -> int: ...
    def position_of(self, writer: str) -> int: ...


@dataclass(slots=True, eq=False)
class TokenWaiter:
    """A caller that waits for a token of a stream. ``wake`` is the event or future that wakes the caller."""

    stream: str
    token: VectorToken
    wake: Any


def missing(seen: Seen, token: VectorToken) -> tuple[str | None, int] | None:
    """Returns the first position that the token covers and that is not seen, as ``(writer, position)``, or None if all are.

    The writer is None for the linear position.
    """
    if seen.linear < token.base:
        return None, token.base
    return next(((writer, at) for writer, at in token.entries.items() if seen.position_of(writer) < at), None)
