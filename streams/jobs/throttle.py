"""Throttles maintenance, so that it uses less than half of a core and leaves the database free for other work."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

_REST = 1.15
"""Seconds of rest for each second of work."""
_LONGEST_REST = 1.5
Step = TypeVar("Step")


def throttled(steps: Iterable[Step]) -> Iterator[Step]:
    """Yields the steps. After each step, sleeps for 1.15 times the time that the step took, at most 1.5 seconds.

    The time of a step includes the time that the caller works on the step.
    """
    started = time.monotonic()
    for step in steps:
        yield step  # the caller works on the step here, within its time
        time.sleep(min(_REST * (time.monotonic() - started), _LONGEST_REST))
        started = time.monotonic()
