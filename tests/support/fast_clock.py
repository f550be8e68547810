"""An event loop whose clock jumps: where it would wait for a timer, the time is there at once.

Hours pass in a moment, with every timer in its order. While `warped` is entered, ``time.monotonic`` and ``time.time`` of the
program follow the loop's clock. Input from outside the loop (sockets, threads) does not fit in: nothing would wait for it.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


class _JumpingSelector(selectors.PollSelector):
    """Never waits: moves the clock on instead."""

    now = 1_000.0

    def select(self, timeout: float | None = None) -> list:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class FastLoop(asyncio.SelectorEventLoop):
    """The loop; `time` is its clock in seconds."""

    def __init__(self) -> None:
        self.selector = _JumpingSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


@contextmanager
def warped(epoch: float = 1_795_226_000.0) -> Iterator[FastLoop]:
    """A loop, and the program's clocks set by it."""
    loop = FastLoop()
    asyncio.set_event_loop(loop)
    try:
        with (
            mock.patch.object(time, "monotonic", loop.time),
            mock.patch.object(time, "time", lambda: epoch + loop.time()),
        ):
            yield loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()
