"""Totals that count towards a limit for each second (pure)."""

from __future__ import annotations

import math
from collections import Counter


class SecondTotal:
    """A total that starts again at 0 a second after its first addition."""

    def __init__(self) -> None:
        self._started = -math.inf
        self._total = 0

    def at(self, now: float) -> int:
        """Returns what was added in the second that lasts at ``now`` (monotonic)."""
        if now >= self._started + 1.0:
            self._started, self._total = now, 0
        return self._total

    def add(self, amount: int) -> None:
        """Adds ``amount`` to the second for which `at` was called last."""
        self._total += amount


class SecondShares:
    """Totals by key that start again each second. Each key has an equal share of what all of them may have together.

    Shares are of the keys of the second before, and one more for a key that is new. Otherwise two keys that want much could
    use up each second as it begins, and no other key would get anything, ever.
    """

    def __init__(self) -> None:
        self._started = -math.inf
        self._used: Counter[str] = Counter()
        self._keys_before = 0

    def room(self, key: str, now: float, of_one: int, of_all: int) -> int:
        """Returns what the key may still have in the second that lasts at ``now`` (monotonic). May be negative."""
        if now >= self._started + 1.0:
            self._keys_before = len(self._used) if now < self._started + 2.0 else 0
            self._started = now
            self._used.clear()
        share = max(min(of_one, of_all // (self._keys_before + 1)), 1)
        return min(share - self._used[key], of_all - self._used.total())

    def add(self, key: str, amount: int) -> None:
        """Adds ``amount``, which may be 0, to what the key has in the second for which `room` was called last."""
        self._used[key] += amount
