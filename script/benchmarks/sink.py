"""Followers that only count: opens connections and says how long it took until each of them has seen a mark.

    python -m script.benchmarks.sink PORT CONNECTIONS     (then: the mark on standard input)

Prints ``connected`` when all are, ``looking`` when it knows the mark, and
``done SECONDS`` from the first byte after the mark was given to the last mark seen.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import cast

import uvloop


class Sink(asyncio.Protocol):
    """One connection; keeps the tail of what it read, so that a mark that is cut in two is found."""

    mark = b"\0"
    left = 0
    first = 0.0
    all_seen: asyncio.Future[float]

    def __init__(self) -> None:
        self._tail = b""
        self._seen = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for positions, as a follower does."""
        cast("asyncio.Transport", transport).write(b"REPLICATE \n")

    def data_received(self, data: bytes) -> None:
        """Look for the mark."""
        if self.mark == b"\0":
            return
        Sink.first = Sink.first or time.perf_counter()
        if not self._seen and self.mark in self._tail + data[-4096:]:
            self._seen = True
            Sink.left -= 1
            if Sink.left == 0:
                self.all_seen.set_result(time.perf_counter() - Sink.first)
        self._tail = data[-200:]


async def run(port: int, connections: int) -> None:
    """Connect, read the mark, wait for it on all connections."""
    loop = asyncio.get_running_loop()
    Sink.left, Sink.all_seen = connections, loop.create_future()
    for _ in range(connections):
        await loop.create_connection(Sink, "127.0.0.1", port)
    sys.stdout.write("connected\n")
    sys.stdout.flush()
    Sink.mark = (await loop.run_in_executor(None, sys.stdin.readline)).strip().encode()
    sys.stdout.write("looking\n")
    sys.stdout.flush()
    seconds = await asyncio.wait_for(Sink.all_seen, 120)
    sys.stdout.write(f"done {seconds}\n")


if __name__ == "__main__":
    uvloop.run(run(int(sys.argv[1]), int(sys.argv[2])))
