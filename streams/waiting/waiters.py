"""Who waits for which position of a stream (pure): cheap for many, since a move looks only at those whose turn it is.

A waiter for a token waits for its base, the linear position, and then for each writer's entry in turn. Whoever waits stands
in one heap at a time, by the number that it waits for; one that gave up is thrown out when such have become many.

Assumes one thread at a time; the caller holds a lock.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from streams.core.tokens import VectorToken

__all__ = ["Seen", "Waiter", "WaitingRoom", "has_reached"]

_MANY_GONE = 64


class Seen(Protocol):
    """A stream's positions as a process sees them; they never go down."""

    @property
    def linear(self) -> int: ...
    def position_of(self, writer: str) -> int: ...


def has_reached(seen: Seen, token: VectorToken) -> bool:
    """Whether everything that the token covers is complete."""
    return seen.linear >= token.base and _missing_entry(seen, token) is None


def _missing_entry(seen: Seen, token: VectorToken) -> str | None:
    """A writer that is not as far as its entry."""
    return next((writer for writer, at in token.entries.items() if seen.position_of(writer) < at), None)


@dataclass(slots=True, eq=False)
class Waiter:
    """Somebody who waits; ``wake`` is the caller's own."""

    stream: str
    token: VectorToken
    wake: Any
    gone: bool = False


_Heap = list[tuple[int, int, Waiter]]


@dataclass(slots=True)
class _Queues:
    """Of one stream: who waits for the linear position, and who for a writer's."""

    base: _Heap = field(default_factory=list)
    of_writer: dict[str, _Heap] = field(default_factory=dict)

    def heaps(self) -> Iterator[_Heap]:
        yield self.base
        yield from self.of_writer.values()


class WaitingRoom:
    """All who wait in a process."""

    def __init__(self) -> None:
        self._streams: dict[str, _Queues] = {}
        self._order = itertools.count()
        self._gone = 0

    def __len__(self) -> int:
        return sum(len(heap) for queues in self._streams.values() for heap in queues.heaps()) - self._gone

    @property
    def streams(self) -> list[str]:
        """Streams that somebody waits for."""
        return list(self._streams)

    def add(self, waiter: Waiter, seen: Seen) -> bool:
        """Let it wait; False when its token is reached already."""
        if has_reached(seen, waiter.token):
            return False
        self._place(self._streams.setdefault(waiter.stream, _Queues()), waiter, seen)
        return True

    def leave(self, waiter: Waiter) -> None:
        """It gave up."""
        if not waiter.gone:
            waiter.gone = True
            self._gone += 1
            if self._gone > max(_MANY_GONE, len(self)):
                self._throw_out()

    def moved(self, stream: str, seen: Seen) -> list[Waiter]:
        """The stream's positions rose: those who need not wait any more."""
        queues = self._streams.get(stream)
        if queues is None:
            return []
        reached: list[Waiter] = []
        self._advance(queues, queues.base, seen.linear, seen, reached)
        for writer in list(queues.of_writer):
            self._advance(queues, queues.of_writer[writer], seen.position_of(writer), seen, reached)
            if not queues.of_writer[writer]:
                del queues.of_writer[writer]
        if not any(queues.heaps()):
            del self._streams[stream]
        return reached

    def everybody(self) -> list[Waiter]:
        """Those who wait, all of them; nobody waits any more."""
        heaps = [heap for queues in self._streams.values() for heap in queues.heaps()]
        self._streams, self._gone = {}, 0
        return [waiter for heap in heaps for _, _, waiter in heap if not waiter.gone]

    def _advance(self, queues: _Queues, heap: _Heap, upto: int, seen: Seen, reached: list[Waiter]) -> None:
        while heap and heap[0][0] <= upto:
            waiter = heapq.heappop(heap)[2]
            if waiter.gone:
                self._gone -= 1
            elif has_reached(seen, waiter.token):
                waiter.gone = True
                reached.append(waiter)
            else:
                self._place(queues, waiter, seen)

    def _place(self, queues: _Queues, waiter: Waiter, seen: Seen) -> None:
        """In the heap of the first thing that is missing; something is."""
        writer = None if seen.linear < waiter.token.base else _missing_entry(seen, waiter.token)
        heap = queues.base if writer is None else queues.of_writer.setdefault(writer, [])
        number = waiter.token.base if writer is None else waiter.token.entries[writer]
        heapq.heappush(heap, (number, next(self._order), waiter))

    def _throw_out(self) -> None:
        for stream, queues in list(self._streams.items()):
            for heap in queues.heaps():
                heap[:] = [entry for entry in heap if not entry[2].gone]
                heapq.heapify(heap)
            queues.of_writer = {writer: heap for writer, heap in queues.of_writer.items() if heap}
            if not any(queues.heaps()):
                del self._streams[stream]
        self._gone = 0
