"""Followers that note how late each PING of a server comes: it is due a set time after the line before it.

    python -m script.benchmarks.pings PORT CONNECTIONS INTERVAL_MS     (then: a line for each report, ``end`` to end)

Prints ``connected``, and for each line on standard input the milliseconds of lateness since the last report, as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

import uvloop

late_ms: list[float] = []


class Listener(asyncio.Protocol):
    """One connection."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._rest = b""
        self._last = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Follow everything."""
        cast("asyncio.Transport", transport).write(b"REPLICATE \n")

    def data_received(self, data: bytes) -> None:
        """A PING is late by what it came after its time; any line moves that on."""
        now = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and lines[0].startswith(b"PING "):
            late_ms.append(max(0.0, now - self._last - self._interval) * 1000)
        if lines:
            self._last = now


async def run(port: int, connections: int, interval: float) -> None:
    """Connect, and report until told to end."""
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: Listener(interval), "127.0.0.1", port)
    _say("connected")
    while (await loop.run_in_executor(None, sys.stdin.readline)).strip() not in ("", "end"):
        _say(json.dumps(late_ms))
        late_ms.clear()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(run(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) / 1000))
