"""Wakes waiting callers: sets a ``threading.Event``, or resolves asyncio futures, with one call for each event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol


class _Waiter(Protocol):
    wake: Any


def wake_all(waiters: Iterable[_Waiter]) -> None:
    """Wakes the waiters. May be called from any thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for waiter in waiters:
        if isinstance(waiter.wake, threading.Event):
            waiter.wake.set()
        else:
            by_loop.setdefault(waiter.wake.get_loop(), []).append(waiter.wake)
    for loop, futures in by_loop.items():
        # The thread of a loop may close the loop at any moment. Then no caller waits in it any more. A check before the call
        # would not help: the loop is open when A checks, B closes it, and A's call raises.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve, futures)


def resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
