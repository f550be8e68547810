"""Followers that note when each fact came, on the clock that all processes of a machine share.

    python -m script.benchmarks.receipts PORT CONNECTIONS     (then: anything on standard input, to end)

Prints ``connected`` when the server has told each where it is (before that it may know of none of them, and send them nothing),
and at the end one line of JSON: ``{token: [seconds, ...]}``, a time per connection.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from typing import cast

import uvloop

times: dict[int, list[float]] = defaultdict(list)
told: asyncio.Queue[None] = asyncio.Queue()


class Receiver(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_told = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for positions, as a follower does."""
        cast("asyncio.Transport", transport).write(b"REPLICATE \n")

    def data_received(self, data: bytes) -> None:
        """Note the facts among the lines, and the first answer."""
        now = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"RDATA caches "):
                times[int(line.split(b" ", 4)[3])].append(now)
            elif not self._is_told and line.startswith(b"POSITION "):
                self._is_told = True
                told.put_nowait(None)


async def run(port: int, connections: int) -> None:
    """Connect, and listen until told to end."""
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(Receiver, "127.0.0.1", port)
    for _ in range(connections):
        await told.get()
    sys.stdout.write("connected\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.readline)
    sys.stdout.write(json.dumps(times) + "\n")


if __name__ == "__main__":
    uvloop.run(run(int(sys.argv[1]), int(sys.argv[2])))
