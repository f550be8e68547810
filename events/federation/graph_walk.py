"""Walks down a room's graph, from some events to those before them (pure).

The graph is read part by part: the caller gives a function that reads events by ID. This function may also return
events before the requested events. Then the walk need not request those. Each event is visited once, so a walk into a
cycle ends. Events that cannot be read are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Place", "Read", "breadth_first", "deepest_first"]


@dataclass(frozen=True, slots=True)
class Place:
    """One event of the graph: its ID, its two orderings, its prev events, and whether it was rejected."""

    event_id: str
    topological_ordering: int
    stream_ordering: int
    prev_event_ids: tuple[str, ...]
    rejected: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """The sort key of the event in the room's timeline: (topological, stream)."""
        return self.topological_ordering, self.stream_ordering


Read = Callable[[Collection[str]], Iterable[Place]]
"""A function that returns the events with these IDs, and perhaps some earlier events that they build on."""


class _Graph:
    """The part of the graph that was read so far, and the IDs of the events that were visited."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: dict[str, Place] = {}
        self._met: set[str] = set()

    def meet(self, event_ids: Iterable[str]) -> list[Place]:
        """Marks the events as visited. Returns the events that were not visited before and could be read."""
        new = [event_id for event_id in dict.fromkeys(event_ids) if event_id not in self._met]
        self._met.update(new)
        unread = [event_id for event_id in new if event_id not in self._known]
        if unread:
            self._known.update((place.event_id, place) for place in self._read(unread))
        return [self._known[event_id] for event_id in new if event_id in self._known]


def deepest_first(starts: Collection[str], read: Read) -> Iterator[Place]:
    """Yields the events ``starts`` and all events below them, in an order close to the timeline read backwards.

    An event is *reached* if it is one of ``starts``, or a prev event of an event that was yielded. The next event to be
    yielded is always the reached event that is last in timeline order and was not yielded yet.
    """
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
    """Yields the events below the events ``starts``, nearest first. The events ``starts`` themselves are left out.

    The walk does not enter the events ``without`` or events with a depth below ``min_depth``. So events that are
    reached only through these are left out, too.
    """
    graph = _Graph(read)
    graph.meet(without)  # counts as visited, so the walk never passes through these events
    level = graph.meet(starts)
    while level:
        below = graph.meet(prev for place in level for prev in place.prev_event_ids)
        # An event below ``min_depth`` ends its path: it is neither given nor walked through.
        level = sorted((p for p in below if p.topological_ordering >= min_depth), key=_turned)
        yield from level
