"""Caches states of groups in memory, up to a total number of entries (pure).

States of one room usually share the entries of an older state (``state.groups.layered``). Shared entries are counted once, so
there is room for the states of many forks of a large room. Of a large room only the entries that were read are in memory; the
shared ones are counted again with each state that is added.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping

from state.groups.layered import StateKey, parts

State = Mapping[StateKey, str]


class StateCache:
    """A cache of the most recently used states. Several threads may use it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.weight = 0
        """The number of entries in memory: those of all shared older states, and the changes on top of them."""
        self._states: OrderedDict[Hashable, State] = OrderedDict()
        self._users: Counter[int] = Counter()
        """``id()`` of an older state -> the number of cached states that share it, and so keep it in memory."""
        self._counted: dict[int, int] = {}
        """``id()`` of an older state -> the number of its entries in ``weight``."""
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> State | None:
        return self.get_all([key])[0]

    def get_all(self, keys: Iterable[Hashable]) -> list[State | None]:
        """Returns the states of the keys in order; None where nothing is cached."""
        found = []
        with self._lock:
            for key in keys:
                state = self._states.get(key)
                if state is not None:
                    self._states.move_to_end(key)
                found.append(state)
        return found

    def put(self, key: Hashable, state: State) -> None:
        """Caches the state. One that is larger than the limit evicts all others, and is then evicted itself."""
        base, changes = parts(state)
        with self._lock:
            self._remove(key)
            self._states[key] = state
            self._users[id(base)] += 1
            self.weight += 1 + len(changes) + len(base) - self._counted.get(id(base), 0)
            self._counted[id(base)] = len(base)
            while self.weight > self.limit:
                self._remove(next(iter(self._states)))

    def clear(self) -> None:
        with self._lock:
            self._states.clear()
            self._users.clear()
            self._counted.clear()
            self.weight = 0

    def _remove(self, key: Hashable) -> None:
        state = self._states.pop(key, None)
        if state is None:
            return
        base, changes = parts(state)
        self._users[id(base)] -= 1
        self.weight -= 1 + len(changes)
        if not self._users[id(base)]:
            del self._users[id(base)]
            self.weight -= self._counted.pop(id(base))
