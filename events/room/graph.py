"""Examines the event graph of a room: causal order, cycles and gaps (pure).

Edges lead from an event to its prev events. Some functions also follow edges to auth events. Outliers are not in the
graph. All functions take time linear in events and edges.

    e1 ◄─ e2 ◄─ e4       in causal order: e1, e2, e4, or with e3 anywhere;
          e3 ◄─ ?        a gap below e3, whose prev event is missing
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol, TypeVar

Id = TypeVar("Id", bound=Hashable)
"""The type of the keys that identify events: event IDs, or numbers."""
_Id_co = TypeVar("_Id_co", bound=Hashable, covariant=True)


class Verdict(Protocol):
    @property
    def outlier(self) -> bool: ...
    @property
    def rejected_reason(self) -> str | None: ...
    @property
    def soft_failed(self) -> bool: ...


class Node(Verdict, Protocol[_Id_co]):
    @property
    def event_id(self) -> _Id_co: ...
    @property
    def backfilled(self) -> bool: ...
    @property
    def prev_event_ids(self) -> tuple[_Id_co, ...]: ...


class NodeWithAuth(Verdict, Protocol[_Id_co]):
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
    """Returns the events that must come before ``node``: prev and auth events, of an outlier only auth events."""
    return node.auth_event_ids if node.outlier else (*node.prev_event_ids, *node.auth_event_ids)


def causal_order(
    nodes: Sequence[NodeWithAuth[str]], *, auth: bool = False, also: Mapping[str, Iterable[str]] | None = None
) -> tuple[list[int], list[int]]:
    """Returns (indexes of the events in causal order, indexes of the events that lie on or above a cycle).

    Each event comes after its prev events, after those that ``also`` lists for it, and with ``auth`` after its auth
    events. Where these rules do not decide, the given order is kept. References to events outside ``nodes`` are
    ignored, and so are the prev events of outliers.
    """
    if len(nodes) == 1 and not also:  # an event does not name itself (``events.format.parsing``)
        return [0], []
    if _in_causal_order(nodes, auth, also or {}):
        return list(range(len(nodes))), []
    order, left = numbers_in_order(len(nodes), _below(nodes, auth, also or {}).__getitem__)
    return list(order), list(left)


def _in_causal_order(nodes: Sequence[NodeWithAuth[str]], auth: bool, also: Mapping[str, Iterable[str]]) -> bool:
    # as in most histories; cheaper than sorting
    inside = {node.event_id for node in nodes}
    for node in nodes:  # ``inside`` has the event itself and all later events
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
    """Returns the indexes of ``left``, the second result of ``causal_order``, that lie on a cycle or between two."""
    return on_cycles(left, _below(nodes, auth, also or {}).__getitem__) if left else []


def _below(nodes: Sequence[NodeWithAuth[str]], auth: bool, also: Mapping[str, Iterable[str]]) -> list[list[int]]:
    index = {node.event_id: number for number, node in enumerate(nodes)}
    found = []
    for node in nodes:
        below = refers_to(node) if auth else () if node.outlier else node.prev_event_ids
        found.append([index[other] for other in (*below, *also.get(node.event_id, ())) if other in index])
    return found


Below = Callable[[int], Iterable[int]]
"""A function that returns the numbers to which a number refers. A number may occur twice in its result."""


def numbers_in_order(count: int, below: Below, members: Iterable[int] | None = None) -> tuple[array[int], array[int]]:
    """Returns (numbers from 0 to ``count`` - 1 in causal order, numbers that lie on or above a cycle).

    Where the causal order does not decide, numbers ascend. If ``members`` is given (ascending), only these numbers are
    ordered, and references to others are ignored. Takes some bytes of memory for each number and edge.
    """
    numbers = range(count) if members is None else array("q", members)
    inside = _Marked(count, numbers)
    waiting, children = _children_of(count, below, inside)
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


def _children_of(count: int, below: Below, inside: _Marked) -> tuple[array[int], Callable[[int], Iterable[int]]]:
    """Returns (the count of references of each number, a function that returns the numbers that refer to a number)."""
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
    # a byte of memory for each number from 0 to ``count`` - 1
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
    """Returns the numbers of ``left``, the second result of ``numbers_in_order``, that lie on a cycle or between two."""
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
