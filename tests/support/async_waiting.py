"""Waiting for a condition with a deadline, and the end of connections, for tests that run on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections

from streams.browsers.threads import CHECKS, READS
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


def close_connections_of_threads() -> None:
    """Those of asgiref's thread and of the readers' would keep the test database from being dropped."""
    asyncio.run(sync_to_async(connections.close_all)())

    async def of_readers() -> None:
        async with ThreadSensitiveContext():
            await READS.run(connections.close_all)
            await CHECKS.run(connections.close_all)

    asyncio.run(of_readers())
