"""Dictionaries that keep what was used last, up to a total weight (pure)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

__all__ = ["BoundedDict", "SharedCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """For one thread at a time. Values come in by ``put`` and go by ``pop``, ``clear``, or when others need the room.

    Reading is a dictionary's own: ``get``, then ``move_to_end`` where the least recently *used* is to go first.
    """

    def __init__(self, limit: int, weigh: Callable[[V], int] | None = None) -> None:
        super().__init__()
        self.limit = limit
        self.weight = 0
        self._weigh = weigh

    def put(self, key: K, value: V) -> int:
        """Keep the value as the one used last; how many went for it, itself included when it is too heavy."""
        self.weight += self._weight_of(value) - (self._weight_of(self[key]) if key in self else 0)
        self[key] = value
        self.move_to_end(key)
        gone = 0
        while self.weight > self.limit:
            self.pop(next(iter(self)))
            gone += 1
        return gone

    def pop(self, key: K, *default: Any) -> Any:
        """As a dictionary's."""
        if key in self:
            self.weight -= self._weight_of(self[key])
        return super().pop(key, *default)

    def clear(self) -> None:
        """As a dictionary's."""
        super().clear()
        self.weight = 0

    def _weight_of(self, value: V) -> int:
        return 1 if self._weigh is None else self._weigh(value)


class SharedCache(Generic[K, V]):
    """A ``BoundedDict`` for many threads: those used least recently go first."""

    def __init__(self, limit: int, weigh: Callable[[V], int] | None = None) -> None:
        self._values: BoundedDict[K, V] = BoundedDict(limit, weigh)
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value, if it is kept."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> None:
        """Keep the value."""
        with self._lock:
            self._values.put(key, value)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
