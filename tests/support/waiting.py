"""Waiting for a condition with a deadline: the one way in which tests wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

#: A hang is told after this time. It must not tell a busy machine, so it is many times what anything takes; a machine that is
#: slower still says more. A deadline costs nothing when the test passes.
DEADLINE_SECONDS = float(os.environ.get("REPLSITE_TEST_PATIENCE", "60"))
T = TypeVar("T")


def wait_until(condition: Callable[[], T], seconds: float = DEADLINE_SECONDS, what: str = "") -> T:
    """The first true value of ``condition``; fails the test when there is none within ``seconds``."""
    begun = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - begun
        if waited > seconds:
            raise AssertionError(f"not within {seconds} s: {what or condition}; last value {value!r}")
        time.sleep(min(0.02 + waited / 25, 0.1))  # what takes long is looked at less often: a look takes CPU from it
    return value
