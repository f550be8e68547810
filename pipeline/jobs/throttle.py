"""Maintenance that leaves the database to others most of the time: less than half of a core is what it takes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["resting"]

_REST = 1.15
"""Seconds of rest for each second of work."""
_LONGEST_REST = 1.5
Step = TypeVar("Step")


def resting(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps, each followed by a rest that is longer than itself."""
    began = time.monotonic()
    for step in steps:
        yield step
        time.sleep(min(_REST * (time.monotonic() - began), _LONGEST_REST))
        began = time.monotonic()
