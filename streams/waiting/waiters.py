"""Keeps callers that wait for a position or for another event (pure).

When a position moves, only the waiters that wait for this position are examined, so many waiters cost little.

``Waiters`` gets an *index function*. This function maps a waiter to a key and a number: the waiter next waits until the
value of the key reaches the number. For example, a waiter for a token first waits for the linear position to reach the
token's base, and then for each writer's position to reach its entry.

Assumes that the caller holds a lock, so that only one thread at a time uses the waiters.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from streams.core.tokens import VectorToken

_MANY_LEFT = 64
W = TypeVar("W", bound=Hashable)
Key = TypeVar("Key", bound=Hashable)


class Waiters(Generic[W, Key]):
    """A collection of waiters by key and number. For each key there is a heap of waiters, ordered by number.

    A waiter that leaves stays in its heap until many waiters have left. Then all waiters that have left are removed at
    once.
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
        return list(self._heaps)

    def add(self, waiter: W) -> bool:
        """Adds a waiter under the key that the index function returns.

        Returns false, and adds nothing, if the function returns None: the waiter need not wait any more.
        """
        place = self._index(waiter)
        if place is None:
            return False
        key, number = place
        heapq.heappush(self._heaps.setdefault(key, []), (number, next(self._order), waiter))
        self._waiting[waiter] = None
        return True

    def leave(self, waiter: W) -> bool:
        """Removes a waiter. Returns false if the waiter was not waiting."""
        if waiter not in self._waiting:
            return False
        del self._waiting[waiter]
        self._left += 1
        if self._left > max(_MANY_LEFT, len(self)):
            self._drop_left()
        return True

    def pop(self, key: Key, upto: int = 0) -> list[W]:
        """Removes and returns the waiters that wait for ``key`` to reach a number of at most ``upto``.

        The caller may add the returned waiters again, to wait for their next key.
        """
        heap, popped = self._heaps.get(key, []), []
        while heap and heap[0][0] <= upto:
            waiter = heapq.heappop(heap)[2]
            if waiter in self._waiting:
                del self._waiting[waiter]
                popped.append(waiter)
            else:
                self._left -= 1
        if not heap:
            self._heaps.pop(key, None)
        return popped

    def pop_all(self) -> list[W]:
        popped, self._waiting, self._heaps, self._left = list(self._waiting), {}, {}, 0
        return popped

    def _drop_left(self) -> None:
        for key, heap in list(self._heaps.items()):
            heap[:] = [entry for entry in heap if entry[2] in self._waiting]
            heapq.heapify(heap)
            if not heap:
                del self._heaps[key]
        self._left = 0


class Seen(Protocol):
    """A stream's positions as a process sees them. The positions never go down."""

    @property
    def linear(self) -> int: ...
    def position_of(self, writer: str) -> int: ...


@dataclass(slots=True, eq=False)
class TokenWaiter:
    """A caller that waits for a token of a stream. Setting the event or resolving the future ``wake`` wakes the caller."""

    stream: str
    token: VectorToken
    wake: Any


def missing(seen: Seen, token: VectorToken) -> tuple[str | None, int] | None:
    """Returns the first position of the token that the process does not see yet, as ``(writer, position)``.

    The writer is None for the linear position. Returns None if the process sees everything that the token covers.
    """
    if seen.linear < token.base:
        return None, token.base
    return next(((writer, at) for writer, at in token.entries.items() if seen.position_of(writer) < at), None)
