"""Walks down a room's graph, from some events to what came before them (pure).

The graph is read in pieces: whoever asks gives a function that reads events by ID and may read as many below them as it
likes. An event is met once, so circles end; what cannot be read is left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Place", "Read", "breadth_first", "deepest_first"]


@dataclass(frozen=True, slots=True)
class Place:
    """An event's place in the graph."""

    event_id: str
    topological_ordering: int
    stream_ordering: int
    prev_event_ids: tuple[str, ...]
    rejected: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """Its place in the room's timeline."""
        return self.topological_ordering, self.stream_ordering


Read = Callable[[Collection[str]], Iterable[Place]]
"""Events by their IDs, and perhaps some below them."""


class _Graph:
    """What was read so far."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: dict[str, Place] = {}
        self._met: set[str] = set()

    def meet(self, event_ids: Iterable[str]) -> list[Place]:
        """Those of the events that were not met before and are here."""
        new = [event_id for event_id in dict.fromkeys(event_ids) if event_id not in self._met]
        self._met.update(new)
        unread = [event_id for event_id in new if event_id not in self._known]
        if unread:
            self._known.update((place.event_id, place) for place in self._read(unread))
        return [self._known[event_id] for event_id in new if event_id in self._known]


def deepest_first(starts: Collection[str], read: Read) -> Iterator[Place]:
    """The starts and all below them; of those that have been reached always the last one of the timeline."""
    graph = _Graph(read)
    queue = [_turned(place) for place in graph.meet(starts)]
    heapq.heapify(queue)
    while queue:
        place = heapq.heappop(queue)[-1]
        yield place
        for below in graph.meet(place.prev_event_ids):
            heapq.heappush(queue, _turned(below))


def _turned(place: Place) -> tuple[int, int, str, Place]:
    return -place.topological_ordering, -place.stream_ordering, place.event_id, place


def breadth_first(
    starts: Collection[str], read: Read, without: Collection[str] = (), min_depth: int = 0
) -> Iterator[Place]:
    """All below the starts (these left out), nearest first; not ``without`` or what is below them only, nor what is less deep."""
    graph = _Graph(read)
    graph.meet(without)
    level = graph.meet(starts)
    while level:
        below = graph.meet(prev for place in level for prev in place.prev_event_ids)
        level = sorted((p for p in below if p.topological_ordering >= min_depth), key=_turned)
        yield from level
