"""Waking those who wait: a ``threading.Event`` is set, an asyncio future resolved in its loop, all futures of a loop at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress

from events.notifier.waiters import HotWaiter

__all__ = ["wake"]


def wake(waiters: Iterable[HotWaiter]) -> None:
    """Wake them; from any thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for waiter in waiters:
        if isinstance(waiter.wake, threading.Event):
            waiter.wake.set()
        else:
            by_loop.setdefault(waiter.wake.get_loop(), []).append(waiter.wake)
    for loop, futures in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed, so nobody waits in it
            loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
