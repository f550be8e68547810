"""A total that counts towards a limit for each second (pure)."""

from __future__ import annotations

import math


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
