"""Dictionaries that keep the most recently used values, up to a total weight (pure)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """A dictionary whose values have a limited total weight. Only one thread at a time may use it.

    Values are added only by ``put``, which evicts the oldest values if the limit is exceeded. ``pop`` and ``clear``
    remove values. Reading works as in any dictionary. To evict by least recent *use*, call ``move_to_end`` after each
    ``get``.
    """

    def __init__(self, limit: int, weigh: Callable[[V], int] | None = None) -> None:
        super().__init__()
        self.limit = limit
        self.weight = 0
        self._weigh = weigh

    def put(self, key: K, value: V) -> int:
        """Stores the value as the most recently used one. Returns how many values were evicted.

        A value that is heavier than the limit evicts all others, and is then evicted itself.
        """
        self.weight += self._weight_of(value) - (self._weight_of(self[key]) if key in self else 0)
        self[key] = value
        self.move_to_end(key)
        evicted = 0
        while self.weight > self.limit:
            self.pop(next(iter(self)))
            evicted += 1
        return evicted

    def pop(self, key: K, *default: Any) -> Any:
        if key in self:
            self.weight -= self._weight_of(self[key])
        return super().pop(key, *default)

    def clear(self) -> None:
        super().clear()
        self.weight = 0

    def _weight_of(self, value: V) -> int:
        return 1 if self._weigh is None else self._weigh(value)


class SharedCache(Generic[K, V]):
    """A ``BoundedDict`` for many threads, which evicts the least recently used values first."""

    def __init__(self, limit: int, weigh: Callable[[V], int] | None = None) -> None:
        self._values: BoundedDict[K, V] = BoundedDict(limit, weigh)
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
            return found

    def get_all(self, keys: Iterable[K]) -> list[V | None]:
        """Returns the values of the keys, in order. A key without a stored value gives None."""
        with self._lock:
            values = self._values
            found = [(key, values.get(key)) for key in keys]
            for key, value in found:
                if value is not None:
                    values.move_to_end(key)
            return [value for _, value in found]

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._values.put(key, value)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
