"""How the time of a case grows with its size: a rule that holds on a busy machine, where a limit in seconds does not."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["growth"]


def growth(make: Callable[[int], Callable[[], object]], size: int, times: int = 4, runs: int = 5) -> float:
    """How many times the CPU of this thread does a case take that is ``times`` as large?

    ``make(size)`` prepares a case and returns what is measured. The two cases run in turns; the best of each counts. A linear
    case grows by about ``times``, a quadratic one by its square.
    """
    cases = [(make(size), []), (make(times * size), [])]  # type: list[tuple[Callable[[], object], list[float]]]
    for _ in range(runs):
        for work, seconds in cases:
            begun = time.thread_time()
            work()
            seconds.append(time.thread_time() - begun)
    small, large = (min(seconds) for _, seconds in cases)
    return large / small
