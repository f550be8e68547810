"""The graph of a room: causal order, leaves and gaps (pure).

Edges lead from an event to its prev events. Rejected and soft-failed events are *looked through*: they never become
leaves, and what they refer to stays a leaf until an accepted event reaches it. Everything is linear in events and
edges.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

__all__ = ["Leaves", "Node", "backward_extremities", "causal_order", "cycles", "is_accepted"]


class Node(Protocol):
    """What the graph knows of an event."""

    @property
    def event_id(self) -> str: ...
    @property
    def prev_event_ids(self) -> tuple[str, ...]: ...
    @property
    def auth_event_ids(self) -> tuple[str, ...]: ...
    @property
    def outlier(self) -> bool: ...
    @property
    def rejected_reason(self) -> str | None: ...
    @property
    def soft_failed(self) -> bool: ...


def is_accepted(node: Node) -> bool:
    """True for an event that counts in timelines and as a leaf."""
    return not (node.outlier or node.soft_failed or node.rejected_reason is not None)


def causal_order(
    nodes: Sequence[Node], *, auth: bool = False, also: Mapping[str, Iterable[str]] | None = None
) -> tuple[list[int], list[int]]:
    """Indexes so that prev events come first, else as given; and the indexes that lie on or above a cycle.

    With ``auth`` the auth events of an event come first too, and so do those that ``also`` names for it. Events that are not
    among ``nodes`` do not matter.
    """
    if len(nodes) == 1 and not also:  # an event does not name itself (``events.fields``)
        return [0], []
    if _in_causal_order(nodes, auth, also or {}):
        return list(range(len(nodes))), []
    children, waiting = _edges(nodes, auth, also or {})
    ready = [number for number, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for child in children[number]:
            waiting[child] -= 1
            if waiting[child] == 0:
                heapq.heappush(ready, child)
    return order, [number for number, count in enumerate(waiting) if count > 0]


def _in_causal_order(nodes: Sequence[Node], auth: bool, also: Mapping[str, Iterable[str]]) -> bool:
    """True when every event stands behind all that it refers to, as in most histories: that takes a look and no heap."""
    inside = {node.event_id for node in nodes}
    for node in nodes:  # ``inside`` has the event itself and those that come later
        if not inside.isdisjoint(node.prev_event_ids) or (auth and not inside.isdisjoint(node.auth_event_ids)):
            return False
        if also and not inside.isdisjoint(also.get(node.event_id, ())):
            return False
        inside.discard(node.event_id)
    return True


def cycles(
    nodes: Sequence[Node], left: Iterable[int], *, auth: bool = False, also: Mapping[str, Iterable[str]] | None = None
) -> list[int]:
    """Of the indexes that ``causal_order`` has left over, those on a cycle or between two; the others lie above."""
    staying = set(left)
    if not staying:
        return []
    children, _ = _edges(nodes, auth, also or {})
    parents: dict[int, list[int]] = {number: [] for number in staying}
    above = dict.fromkeys(staying, 0)
    for number in staying:
        for child in children[number]:
            if child in staying:
                parents[child].append(number)
                above[number] += 1
    tops = [number for number, count in above.items() if not count]
    while tops:
        number = tops.pop()
        staying.discard(number)
        for parent in parents[number]:
            above[parent] -= 1
            if not above[parent]:
                tops.append(parent)
    return sorted(staying)


def _edges(nodes: Sequence[Node], auth: bool, also: Mapping[str, Iterable[str]]) -> tuple[list[list[int]], list[int]]:
    """Per index the indexes of the events that refer to it, and to how many it refers."""
    index = {node.event_id: number for number, node in enumerate(nodes)}
    waiting = [0] * len(nodes)
    children: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        below = (*node.prev_event_ids, *node.auth_event_ids) if auth else node.prev_event_ids
        for other in (*below, *also.get(node.event_id, ())):
            if (parent := index.get(other)) is not None:
                children[parent].append(number)
                waiting[number] += 1
    return children, waiting


def backward_extremities(nodes: Iterable[Node]) -> list[str]:
    """The gaps: prev events of events in the graph that are not in the graph themselves, each once."""
    inside = {node.event_id for node in nodes if not node.outlier}
    gaps = {prev: None for node in nodes if not node.outlier for prev in node.prev_event_ids if prev not in inside}
    return list(gaps)


class Leaves:
    """The forward extremities of a room while its events arrive one by one, in any order."""

    def __init__(
        self,
        current: Iterable[str] = (),
        reached: Iterable[str] = (),
        look_through: Callable[[Collection[str]], Iterable[Node]] = lambda _: (),
    ) -> None:
        """To go on with a stored room: its leaves, and events to come that accepted ones refer to.

        ``look_through`` finds the stored events among these that are rejected or soft-failed, with all such that they lead to. It
        is asked only when an accepted event stands on them: a long chain of them costs nothing until then.
        """
        self._reached = set(reached)
        self._look_through = look_through
        self._here: dict[str, Node] = {}
        self.current: dict[str, None] = dict.fromkeys(current)

    def add(self, node: Node) -> tuple[bool, list[str]]:
        """An event arrives; returns whether it is a leaf now, and the leaves that are none any more.

        Rejected and soft-failed events change nothing until an accepted event refers to them.
        """
        self._here[node.event_id] = node
        reached = node.event_id in self._reached
        if not is_accepted(node):
            return False, self._reach_below(node) if reached else []
        gone = self._reach_below(node)
        if not reached:
            self.current[node.event_id] = None
        return not reached, gone

    def _reach_below(self, node: Node) -> list[str]:
        """An accepted event has been seen above: its prev events, looked through, are leaves no more."""
        gone = []
        below = [node]
        while below:
            new = [prev for prev in below.pop().prev_event_ids if prev not in self._reached]
            if unknown := [prev for prev in new if prev not in self._here]:
                self._here.update((found.event_id, found) for found in self._look_through(unknown))
            for prev in new:
                self._reached.add(prev)
                if prev in self.current:
                    del self.current[prev]
                    gone.append(prev)
                parent = self._here.get(prev)
                if parent is not None and not is_accepted(parent):
                    below.append(parent)
        return gone
