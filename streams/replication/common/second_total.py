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
    """Totals by key that start again each second. While keys want more than all may have, each has an equal share of it.

    Shares are of the keys of the second before, and one more for a key that is new. Otherwise two keys that want much could
    use up each second as it begins, and no other key would get anything, ever. If all of the second before together wanted no
    more than all may have, a key has what one may have: an equal share of many keys that want little may be less than it needs.
    """

    def __init__(self) -> None:
        self._started = -math.inf
        self._used: Counter[str] = Counter()
        self._refused = 0
        self._keys_before = self._wanted_before = 0

    def is_contested(self, now: float, of_all: int) -> bool:
        """Returns true if more than all may have was wanted in the second before the one that lasts at ``now`` (monotonic)."""
        if now >= self._started + 1.0:
            is_next = now < self._started + 2.0
            self._keys_before = len(self._used) if is_next else 0
            self._wanted_before = self._used.total() + self._refused if is_next else 0
            self._started, self._refused = now, 0
            self._used.clear()
        return self._wanted_before > of_all

    def room(self, key: str, now: float, of_one: int, of_all: int) -> int:
        """Returns what the key may still have in the second that lasts at ``now`` (monotonic). May be negative."""
        share = of_one
        if self.is_contested(now, of_all):
            share = max(min(of_one, of_all // (self._keys_before + 1)), 1)
        return min(share - self._used[key], of_all - self._used.total())

    def spare(self, key: str, of_all: int) -> int:
        """Returns the most that one thing may take although the key's share is smaller. 0 if the key has had something.

        Half of what all may have is spare, as long as it was not used: of a thousand keys each has a share of 1 or 2, and a thing
        that is larger would be refused each time. Valid for the second for which `room` was called last.
        """
        return 0 if self._used[key] else of_all // 2 - self._used.total()

    def add(self, key: str, amount: int, refused: int) -> None:
        """Adds ``amount`` to what the key has in the second for which `room` was called last.

        Both numbers may be 0. ``refused`` is what it wanted beyond that, at least.
        """
        self._used[key] += amount
        self._refused += refused
