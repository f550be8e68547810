"""Waking from another thread: events and futures, also of a loop that is closed."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from streams.waiting.waking import wake_all
from tests.support.waiting import DEADLINE_SECONDS


@dataclass
class Sleeper:
    wake: Any


def test_events_and_futures_are_woken():
    event = threading.Event()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(3)]
        futures[1].cancel()
        await asyncio.to_thread(wake_all, [Sleeper(event), *map(Sleeper, futures)])
        async with asyncio.timeout(10):
            await asyncio.gather(futures[0], futures[2])

    asyncio.run(run())
    assert event.is_set()


def test_a_loop_that_was_closed_keeps_nobody_else_asleep():
    event = threading.Event()
    closed, open_one = asyncio.new_event_loop(), asyncio.new_event_loop()
    future, other = closed.create_future(), open_one.create_future()
    closed.close()
    wake_all([Sleeper(future), Sleeper(other), Sleeper(event)])
    open_one.run_until_complete(asyncio.wait_for(other, DEADLINE_SECONDS))
    open_one.close()
    assert event.is_set()
