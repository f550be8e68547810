"""Registers a follower in the table of readers, so that it is on the live page. Assumes a single event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from streams.conf import stream_settings
from streams.db import driver
from streams.replication.client.follower import Follower
from streams.replication.common.reader_rows import ReaderRows
from streams.replication.protocol.connection import CloseReason
from streams.runtime.logs import Condition, get_logger

__all__ = ["Registration"]

log = get_logger(__name__)


class Registration:
    """The follower's row in the table of readers, written at every heartbeat. Database errors are only logged.

    ``positions`` returns {stream: {writer: position}} of what was handled, by default the follower's own.
    """

    def __init__(
        self, follower: Follower, positions: Callable[[], Mapping[str, Mapping[str, int]]] | None = None
    ) -> None:
        self._follower = follower
        self._positions = positions or follower.positions
        self._key = f"follower {follower.options.name}"
        self._connected_at = time.monotonic()
        name = follower.options.name
        self._not_registered = Condition(log, "follower.not_registered", "follower.registered_again", reader=name)
        self._rows = ReaderRows("follower", str(follower.connector), stream_settings().database)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="registration")
        self._task = asyncio.create_task(self._beat())

    async def end(self) -> None:
        """Stops the heartbeats, and marks the follower's row as closed."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._write(CloseReason.STOPPING.value)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._rows.close)
        self._thread.shutdown(wait=True)

    async def _beat(self) -> None:
        while True:
            await self._write("")
            await asyncio.sleep(stream_settings().heartbeat_seconds)

    async def _write(self, close_reason: str) -> None:
        row = self._row(close_reason)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._rows.write, [row])
        except driver.DatabaseError as error:
            self._not_registered.begins(error)
        else:
            self._not_registered.ends()

    def _row(self, close_reason: str) -> dict[str, object]:
        follower = self._follower
        return {
            "key": self._key,
            "name": follower.options.name,
            "address": f"{socket.gethostname()}:{os.getpid()}",
            "connected_seconds": time.monotonic() - self._connected_at,
            "positions": self._positions(),
            **asdict(follower.counters()),
            "buffer_bytes": 0,
            "queued": follower.queued(),
            "close_reason": close_reason,
        }
