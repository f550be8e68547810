"""The graph of a room: causal order, leaves and gaps (pure).

Edges lead from an event to its prev events. Rejected, soft-failed and backfilled events are *looked through*: they never become
leaves, and what they refer to stays a leaf until an accepted live event reaches it. Outliers have no place in the graph: nothing
is reached through one. ``Leaves`` is the one rule for all that asks: events that come in, imports, rebuilding and checking.
Everything is linear in events and edges.
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
"""What events are called: their IDs, or numbers."""
_Id_co = TypeVar("_Id_co", bound=Hashable, covariant=True)


class Verdict(Protocol):
    """What became of an event."""

    @property
    def outlier(self) -> bool: ...
    @property
    def rejected_reason(self) -> str | None: ...
    @property
    def soft_failed(self) -> bool: ...


class Node(Verdict, Protocol[_Id_co]):
    """What the graph knows of an event."""

    @property
    def event_id(self) -> _Id_co: ...
    @property
    def backfilled(self) -> bool: ...
    @property
    def prev_event_ids(self) -> tuple[_Id_co, ...]: ...


class NodeWithAuth(Verdict, Protocol[_Id_co]):
    """An event with all that it refers to."""

    @property
    def event_id(self) -> _Id_co: ...
    @property
    def prev_event_ids(self) -> tuple[_Id_co, ...]: ...
    @property
    def auth_event_ids(self) -> tuple[_Id_co, ...]: ...


def is_accepted(node: Verdict) -> bool:
    """True for an event that counts in timelines and as a leaf."""
    return not (node.outlier or node.soft_failed or node.rejected_reason is not None)


def refers_to(node: NodeWithAuth[Id]) -> tuple[Id, ...]:
    """What has to come before an event: its prev and auth events. An outlier has no place in the graph: only the latter."""
    return node.auth_event_ids if node.outlier else (*node.prev_event_ids, *node.auth_event_ids)


def causal_order(
    nodes: Sequence[NodeWithAuth[str]], *, auth: bool = False, also: Mapping[str, Iterable[str]] | None = None
) -> tuple[list[int], list[int]]:
    """Indexes so that prev events come first, else as given; and the indexes that lie on or above a cycle.

    With ``auth`` the auth events of an event come first too, and so do those that ``also`` names for it. Events that are not
    among ``nodes`` do not matter, nor do the prev events of outliers, which have no place in the graph.
    """
    if len(nodes) == 1 and not also:  # an event does not name itself (``events.format.field_checks``)
        return [0], []
    if _in_causal_order(nodes, auth, also or {}):
        return list(range(len(nodes))), []
    order, left = numbers_in_order(len(nodes), _below(nodes, auth, also or {}).__getitem__)
    return list(order), list(left)


def _in_causal_order(nodes: Sequence[NodeWithAuth[str]], auth: bool, also: Mapping[str, Iterable[str]]) -> bool:
    """True when every event stands behind all that it refers to, as in most histories: that takes a look and no heap."""
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
    """Of the indexes that ``causal_order`` has left over, those on a cycle or between two; the others lie above."""
    return on_cycles(left, _below(nodes, auth, also or {}).__getitem__) if left else []


def _below(nodes: Sequence[NodeWithAuth[str]], auth: bool, also: Mapping[str, Iterable[str]]) -> list[list[int]]:
    """Per index the indexes of the events that it refers to."""
    index = {node.event_id: number for number, node in enumerate(nodes)}
    found = []
    for node in nodes:
        below = refers_to(node) if auth else () if node.outlier else node.prev_event_ids
        found.append([index[other] for other in (*below, *also.get(node.event_id, ())) if other in index])
    return found


Below = Callable[[int], Iterable[int]]
"""The numbers that a number refers to; one may be named twice."""


def numbers_in_order(count: int, below: Below, members: Iterable[int] | None = None) -> tuple[array[int], array[int]]:
    """The numbers 0 to ``count`` - 1 so that those below come first, else ascending; and those on or above a cycle.

    ``members``: only these (ascending); what they refer to besides does not matter. Takes some bytes for each number and edge.
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
    """How many members each member refers to, and the members that refer to a number, one behind the other in one array."""
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
    """Some of the numbers below a limit, in a byte each."""

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
    """Of the numbers that ``numbers_in_order`` has left over, those on a cycle or between two; the others lie above."""
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
    """The gaps: prev events of events in the graph that are not in the graph themselves, each once."""
    inside = {node.event_id for node in nodes if not node.outlier}
    gaps = {prev: None for node in nodes if not node.outlier for prev in node.prev_event_ids if prev not in inside}
    return list(gaps)


class Leaves(Generic[Id]):
    """The forward extremities of a room while its events arrive one by one.

    An event *counts* when it is accepted and live. In a room without such an event accepted backfilled ones count; the first live
    one ends that, and their leaves with it. The leaves are the events that count and that no other one reaches: from an event
    that counts its prev events are reached, and from reached events that do not count theirs. So the order of arrival decides
    nothing, nor does whether an event came by itself or in a batch. Where the state before an event was told from outside,
    ``reaches`` may leave prev events out.
    """

    def __init__(
        self,
        current: Iterable[Id] = (),
        reached: MutableSet[Id] | None = None,
        find: Callable[[Collection[Id]], Iterable[Node[Id]]] | None = None,
        *,
        live: bool = False,
        reaches: Callable[[Node[Id]], Iterable[Id]] = lambda node: node.prev_event_ids,
    ) -> None:
        """To go on with a stored room: its leaves, and events to come that are reached.

        ``find`` finds, among some events, those of the graph that do not count, as far as anything that matters is reached
        through them; without it those that have arrived are remembered. ``reached`` is added to. ``live``: an accepted live
        event is here, or is going to be. ``reaches`` tells which of its prev events an event reaches.
        """
        self.live = live
        self._reaches = reaches
        self._reached: MutableSet[Id] = set() if reached is None else reached
        self._find = self._of_here if find is None else find
        self._here: dict[Id, Node[Id]] | None = {} if find is None else None
        """Events that have arrived and may be looked through."""
        self.current: dict[Id, None] = dict.fromkeys(current)

    def counts(self, node: Node[Id]) -> bool:
        """Whether it may be a leaf, and reaches others."""
        return is_accepted(node) and not (node.backfilled and self.live)

    def add(self, node: Node[Id]) -> tuple[bool, list[Id]]:
        """An event of the graph arrives; returns whether it is a leaf now, and the leaves that are none any more.

        One that does not count changes nothing until it is reached.
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
        """The short way of ``add`` for an event that counts and builds on just the current leaves: it is the only one then.

        False: it does not, or is no leaf itself; nothing is done.
        """
        if not self._are_current(prev_event_ids) or event_id in self._reached:
            return False
        for prev in prev_event_ids:
            self._reached.add(prev)
        self.current.clear()
        self.current[event_id] = None
        return True

    def _are_current(self, event_ids: Collection[Id]) -> bool:
        """Whether just these are the leaves."""
        current = self.current
        if len(event_ids) != len(current):
            return False
        return all(map(current.__contains__, event_ids))

    def _begin(self) -> list[Id]:
        """The first accepted live event: backfilled ones count no more, and what they reached is not reached."""
        self.live = True
        gone = list(self.current)
        self.current.clear()
        self._reached.clear()
        return gone

    def _reach_below(self, node: Node[Id]) -> list[Id]:
        """It counts, or is reached: its prev events are leaves no more, nor are those below what is looked through."""
        gone = []
        below = [node]
        while below:
            new = [prev for prev in self._reaches(below.pop()) if prev not in self._reached]
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
