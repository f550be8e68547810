"""Numbers the events of a large room from 0, in the given order, with little memory for each event (pure).

An event is looked up by the hash of its ID. Then the IDs themselves are compared, so equal hashes cause no mistake.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, MutableSet, Sequence

from events.errors import HistoryError


class EventNumbers:
    """A map from event ID to number, in about twenty bytes for each event. ``names`` returns the IDs of numbers."""

    def __init__(self, event_ids: Iterable[str], count: int, names: Callable[[Sequence[int]], Sequence[str]]) -> None:
        """Raises ``HistoryError`` if an ID occurs twice."""
        self._names = names
        self._hashes = array("q")
        self._mask = (1 << (2 * count).bit_length()) - 1
        self._table = array("i", bytes(4 * (self._mask + 1)))
        """A hash table with open addressing. An entry is a number + 1, or 0 if the entry is free."""
        alike = [number for number, event_id in enumerate(event_ids) if self._add(number, hash(event_id))]
        for number, event_id in zip(alike, self._names(alike), strict=True):
            others = list(self._of_hash(self._hashes[number]))
            if list(self._names(others)).count(event_id) > 1:
                raise HistoryError(f"{event_id} is given twice; drop duplicates first")

    def find(self, event_ids: Collection[str]) -> dict[str, int]:
        """Returns the numbers by ID. IDs without a number are left out."""
        found = [(event_id, number) for event_id in event_ids for number in self._of_hash(hash(event_id))]
        names = self._names([number for _, number in found])
        return {event_id: number for (event_id, number), name in zip(found, names, strict=True) if name == event_id}

    def _add(self, number: int, hashed: int) -> bool:
        # true if an earlier event has the same hash
        place, alike = hashed & self._mask, False
        while other := self._table[place]:
            alike = alike or self._hashes[other - 1] == hashed
            place = (place + 1) & self._mask
        self._table[place] = number + 1
        self._hashes.append(hashed)
        return alike

    def _of_hash(self, hashed: int) -> Iterator[int]:
        place = hashed & self._mask
        while other := self._table[place]:
            if self._hashes[other - 1] == hashed:
                yield other - 1
            place = (place + 1) & self._mask


class Links:
    """A map from an event's number to the numbers of other events, such as its prev events. Each entry is set once."""

    def __init__(self, count: int) -> None:
        self._starts = array("q", bytes(8 * count))
        self._counts = array("i", bytes(4 * count))
        self._others = array("i")

    def put(self, number: int, others: Sequence[int]) -> None:
        self._starts[number], self._counts[number] = len(self._others), len(others)
        self._others.extend(others)

    def of(self, number: int) -> tuple[int, ...]:
        start = self._starts[number]
        return tuple(self._others[start : start + self._counts[number]])


class NumberSet(MutableSet[int]):
    """A set of numbers from 0 to ``limit`` - 1, in ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._marks = bytearray(limit)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and bool(self._marks[number])

    def __iter__(self) -> Iterator[int]:
        return (number for number, mark in enumerate(self._marks) if mark)

    def __len__(self) -> int:
        return self._marks.count(1)

    def add(self, value: int) -> None:
        self._marks[value] = 1

    def discard(self, value: int) -> None:
        self._marks[value] = 0
