"""Maintenance that leaves the database to others half of the time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["resting"]

_LONGEST_REST = 1.0
Step = TypeVar("Step")


def resting(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps, each followed by as long a rest."""
    began = time.monotonic()
    for step in steps:
        yield step
        time.sleep(min(time.monotonic() - began, _LONGEST_REST))
        began = time.monotonic()
