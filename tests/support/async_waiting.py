"""Waiting for a condition with a deadline, for tests that run on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from streams.waiting import listen
from tests.support.waiting import DEADLINE_SECONDS

T = TypeVar("T")


async def wait_for(condition: Callable[[], T], seconds: float = DEADLINE_SECONDS, what: str = "") -> T:
    """The first true value of ``condition``; fails the test when there is none within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or condition}; last value {value!r}")
        await asyncio.sleep(0.01)
    return value


def listeners_that_wait() -> int:
    """The asynchronous listeners of this event loop that wait for a fact."""
    return sum(len(place._futures) for place in listen._places.get(asyncio.get_running_loop(), {}).values())
