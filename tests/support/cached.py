"""A small cache of this process on ``streams.caches.Kept``, for tests of what drops its values, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from streams.caches import Kept, invalidate
from streams.core.invalidation import ROOM_STATE

#: (room, users whose membership changed) -> keys to drop.
Rule = Callable[[str, Sequence[str]], Iterable[tuple[str, ...]]]


class Cached:
    """A function of texts whose values are kept in a dictionary. With ``rule`` they depend on the state of rooms."""

    def __init__(self, name: str, function: Callable[..., Any], rule: Rule | None = None) -> None:
        self.name, self.function, self.rule = name, function, rule
        self.values: dict[tuple[str, ...], Any] = {}
        self.hits = self.misses = self.dropped = 0
        self.kept = Kept(name if rule is None else ROOM_STATE, self._drop, self.values.clear)

    def __call__(self, *key: str) -> Any:
        mark = self.kept.mark()
        if mark is not None and key in self.values:
            self.hits += 1
            return self.values[key]
        self.misses += 1
        value = self.function(*key)
        self.kept.keep(mark, lambda: self.values.__setitem__(key, value))
        return value

    def invalidate(self, *key: str) -> int:
        return invalidate(self.name, key)[0]

    def _drop(self, keys: list[str]) -> None:
        for key in [tuple(keys)] if self.rule is None else self.rule(keys[0], keys[1:]):
            self.dropped += self.values.pop(key, None) is not None


def cached(name: str, rule: Rule | None = None) -> Callable[[Callable[..., Any]], Cached]:
    """Decorator that makes a function ``Cached``."""
    return lambda function: Cached(name, function, rule)
