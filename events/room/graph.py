"""The event graph of a room: causal order, forward extremities and gaps (pure).

Edges lead from an event to its prev events. Rejected, soft-failed and backfilled events are *transparent*: they never
become forward extremities, and the events they refer to stay forward extremities until an accepted live event reaches
them. Outliers are not in the graph, so nothing is reached through them. ``Leaves`` is the only implementation
of that rule. Live events, imports, rebuilds and checks all use it. Everything here is linear in events and edges.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, MutableSet, Sequence
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

__all__ = [
    "Leaves",
    "Node",
    "backward_extremities",
    "causal_order",
    "cycles",
    "is_accepted",
    "numbers_in_order",
    "on_cycles",
    "refers_to",
]

Id = TypeVar("Id", bound=Hashable)
"""Events are named by their IDs, or by numbers."""
_Id_co = TypeVar("_Id_co", bound=Hashable, covariant=True)


class Verdict(Protocol):
    """The outcome for an event: outlier, rejected or soft-failed."""

    @property
    def outlier(self) -> bool: ...
    @property
    def rejected_reason(self) -> str | None: ...
    @property
    def soft_failed(self) -> bool: ...


class Node(Verdict, Protocol[_Id_co]):
    """The fields of an event that the graph needs."""

    @property
    def event_id(self) -> _Id_co: ...
    @property
    def backfilled(self) -> bool: ...
    @property
    def prev_event_ids(self) -> tuple[_Id_co, ...]: ...


class NodeWithAuth(Verdict, Protocol[_Id_co]):
    """An event with all references: prev events and auth events."""

    @property
    def event_id(self) -> _Id_co: ...
    @property
    def prev_event_ids(self) -> tuple[_Id_co, ...]: ...
    @property
    def auth_event_ids(self) -> tuple[_Id_co, ...]: ...


def is_accepted(node: Verdict) -> bool:
    """Returns true for an event that is shown in timelines and may be a forward extremity."""
    return not (node.outlier or node.soft_failed or node.rejected_reason is not None)


def refers_to(node: NodeWithAuth[Id]) -> tuple[Id, ...]:
    """Returns the events that must come before this one: prev and auth events. An outlier has only auth events."""
    return node.auth_event_ids if node.outlier else (*node.prev_event_ids, *node.auth_event_ids)


def causal_order(
    nodes: Sequence[NodeWithAuth[str]], *, auth: bool = False, also: Mapping[str, Iterable[str]] | None = None
) -> tuple[list[int], list[int]]:
    """Returns the indexes in causal order, else as given, and the indexes that lie on or above a cycle.

    With ``auth`` the auth events of an event come before it too, and so do the events that ``also`` lists for it.
    References to events outside ``nodes`` are ignored, and so are the prev events of outliers.
    """
    if len(nodes) == 1 and not also:  # an event does not name itself (``events.format.field_checks``)
        return [0], []
    if _in_causal_order(nodes, auth, also or {}):
        return list(range(len(nodes))), []
    order, left = numbers_in_order(len(nodes), _below(nodes, auth, also or {}).__getitem__)
    return list(order), list(left)


def _in_causal_order(nodes: Sequence[NodeWithAuth[str]], auth: bool, also: Mapping[str, Iterable[str]]) -> bool:
    """Returns true if every event comes after all its references, as in most histories. This is cheaper than sorting."""
    inside = {node.event_id for node in nodes}
    for node in nodes:  # ``inside`` has the event itself and those that come later
        if not inside.isdisjoint(node.prev_event_ids) and not node.outlier:
            return False
        if auth and not inside.isdisjoint(node.auth_event_ids):
            return False
        if also and not inside.isdisjoint(also.get(node.event_id, ())):
            return False
        inside.discard(node.event_id)
    return True


def cycles(
    nodes: Sequence[NodeWithAuth[str]],
    left: Collection[int],
    *,
    auth: bool = False,
    also: Mapping[str, Iterable[str]] | None = None,
) -> list[int]:
    """Returns those of the indexes left over by ``causal_order`` that lie on a cycle or between two. The others lie above."""
    return on_cycles(left, _below(nodes, auth, also or {}).__getitem__) if left else []


def _below(nodes: Sequence[NodeWithAuth[str]], auth: bool, also: Mapping[str, Iterable[str]]) -> list[list[int]]:
    """Returns for each index the indexes that its event refers to."""
    index = {node.event_id: number for number, node in enumerate(nodes)}
    found = []
    for node in nodes:
        below = refers_to(node) if auth else () if node.outlier else node.prev_event_ids
        found.append([index[other] for other in (*below, *also.get(node.event_id, ())) if other in index])
    return found


Below = Callable[[int], Iterable[int]]
"""Returns the numbers that a number refers to, possibly with repetitions."""


def numbers_in_order(count: int, below: Below, members: Iterable[int] | None = None) -> tuple[array[int], array[int]]:
    """Returns 0 to ``count`` - 1 in causal order, else ascending, and the numbers on or above a cycle.

    With ``members`` (ascending) only these are ordered, and references to others are ignored. Takes some bytes for each
    number and edge.
    """
    numbers = range(count) if members is None else array("q", members)
    inside = _Marked(count, numbers)
    waiting, children = _turned(count, below, inside)
    ready = [number for number in numbers if not waiting[number]]
    order = array("q")
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for child in children(number):
            waiting[child] -= 1
            if not waiting[child]:
                heapq.heappush(ready, child)
    return order, array("q", (number for number in numbers if waiting[number]))


def _turned(count: int, below: Below, inside: _Marked) -> tuple[array[int], Callable[[int], Iterable[int]]]:
    """Returns the number of members that each member refers to, and a function for the reverse edges, kept in one array."""
    waiting, ends = array("i", bytes(4 * count)), array("q", bytes(8 * (count + 1)))
    for number in inside:
        for other in below(number):
            if other in inside:
                waiting[number] += 1
                ends[other + 1] += 1
    ends = array("q", accumulate(ends))
    free, children = ends[:], array("q", bytes(8 * ends[-1]))
    for number in inside:
        for other in below(number):
            if other in inside:
                children[free[other]] = number
                free[other] += 1
    return waiting, lambda number: children[ends[number] : ends[number + 1]]


class _Marked:
    """A set of numbers below a limit, one byte each."""

    def __init__(self, count: int, numbers: Iterable[int]) -> None:
        self._numbers = numbers
        self._marks = bytearray(count)
        for number in numbers:
            self._marks[number] = 1

    def __contains__(self, number: int) -> bool:
        return number < len(self._marks) and bool(self._marks[number])

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)


def on_cycles(left: Collection[int], below: Below) -> list[int]:
    """Returns those of the numbers left over by ``numbers_in_order`` that lie on a cycle or between two. The others lie above."""
    staying = set(left)
    above = dict.fromkeys(staying, 0)
    for number in staying:
        for other in below(number):
            if other in above:
                above[other] += 1
    tops = [number for number, count in above.items() if not count]
    while tops:
        number = tops.pop()
        staying.discard(number)
        for other in below(number):
            if other in staying:
                above[other] -= 1
                if not above[other]:
                    tops.append(other)
    return sorted(staying)


def backward_extremities(nodes: Iterable[Node[str]]) -> list[str]:
    """Returns the missing prev events of events in the graph, each once."""
    inside = {node.event_id for node in nodes if not node.outlier}
    gaps = {prev: None for node in nodes if not node.outlier for prev in node.prev_event_ids if prev not in inside}
    return list(gaps)


class Leaves(Generic[Id]):
    """The forward extremities of a room while its events arrive one by one.

    An event *counts* if it is accepted and live. While a room has no such event, accepted backfilled events count. The
    first live one ends that, and removes their forward extremities. Forward extremities are the events that count and are
    not reached. An event that counts reaches its prev events. A reached event that does not count passes this on to its
    own prev events. So the result does not depend on the order of arrival, or on how events are divided into batches.
    """

    def __init__(
        self,
        current: Iterable[Id] = (),
        reached: MutableSet[Id] | None = None,
        find: Callable[[Collection[Id]], Iterable[Node[Id]]] | None = None,
        *,
        live: bool = False,
    ) -> None:
        """Continues a stored room: its forward extremities, and IDs of events still to come that are reached already.

        ``find`` returns, of some events, those in the graph that do not count, as far as anything relevant is reached
        through them. Without it the events that have arrived are remembered. ``reached`` is extended. ``live``: an
        accepted live event is stored, or is part of this batch.
        """
        self.live = live
        self._reached: MutableSet[Id] = set() if reached is None else reached
        self._find = self._of_here if find is None else find
        self._here: dict[Id, Node[Id]] | None = {} if find is None else None
        """Transparent events that have arrived."""
        self.current: dict[Id, None] = dict.fromkeys(current)

    def counts(self, node: Node[Id]) -> bool:
        """Returns true if the event may be a forward extremity, and reaches others."""
        return is_accepted(node) and not (node.backfilled and self.live)

    def add(self, node: Node[Id]) -> tuple[bool, list[Id]]:
        """Adds an event of the graph. Returns whether it is a forward extremity now, and the events that no longer are.

        An event that does not count changes nothing until it is reached.
        """
        gone = self._begin() if not self.live and not node.backfilled and is_accepted(node) else []
        if self._here is not None and (node.backfilled or not is_accepted(node)):
            self._here[node.event_id] = node
        counts, reached = self.counts(node), node.event_id in self._reached
        if counts or reached:
            gone += self._reach_below(node)
        is_leaf = counts and not reached
        if is_leaf:
            self.current[node.event_id] = None
        return is_leaf, gone

    def replace_all(self, event_id: Id, prev_event_ids: Collection[Id]) -> bool:
        """Takes the fast path of ``add`` for an event that counts and builds on exactly the current forward extremities.

        The event becomes the only one. Returns false, and does nothing, if the event builds on others or is reached itself.
        """
        if not self._are_current(prev_event_ids) or event_id in self._reached:
            return False
        for prev in prev_event_ids:
            self._reached.add(prev)
        self.current.clear()
        self.current[event_id] = None
        return True

    def _are_current(self, event_ids: Collection[Id]) -> bool:
        """Returns true if these are exactly the forward extremities."""
        current = self.current
        if len(event_ids) != len(current):
            return False
        return all(map(current.__contains__, event_ids))

    def _begin(self) -> list[Id]:
        """Starts over with the first accepted live event: backfilled events no longer count, so they reach nothing."""
        self.live = True
        gone = list(self.current)
        self.current.clear()
        self._reached.clear()
        return gone

    def _reach_below(self, node: Node[Id]) -> list[Id]:
        """Removes the prev events of an event that counts or is reached, and continues below events that do not count."""
        gone = []
        below = [node]
        while below:
            new = [prev for prev in below.pop().prev_event_ids if prev not in self._reached]
            for prev in new:
                self._reached.add(prev)
                if prev in self.current:
                    del self.current[prev]
                    gone.append(prev)
            if new:
                below += [found for found in self._find(new) if not self.counts(found)]
        return gone

    def _of_here(self, event_ids: Collection[Id]) -> Iterable[Node[Id]]:
        here = self._here or {}
        return [here[event_id] for event_id in event_ids if event_id in here]
