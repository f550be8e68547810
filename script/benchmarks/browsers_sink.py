"""Browsers that note when each fact came, on the clock that all processes of a machine share.

    python -m script.benchmarks.browsers_sink PORT QUERY BROWSERS     (then: the number of the last fact on standard input)

Prints ``connected`` when the server has told each where it is, and when all have the last fact one line of JSON:
``{number: [seconds, ...]}``, a time per browser.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from typing import Any, cast

times: dict[int, list[float]] = defaultdict(list)
told: asyncio.Queue[None] = asyncio.Queue()


def note(text: bytes, now: float) -> None:
    """Notes the facts in a JSON value. What is no number, or list of numbers, tells where a browser is."""
    found = json.loads(text)
    for number in found if isinstance(found, list) else [found]:
        if isinstance(number, int):
            times[number].append(now)


class Events(asyncio.Protocol):
    """Reads one answer that goes on, and notes when its bytes came, before they are parsed: 50 browsers are one process here."""

    def __init__(self, query: str) -> None:
        self.query, self.rest, self.is_told = query, b"", False
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(f"GET /{self.query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                note(line.removeprefix(b"data:"), now)
                if not self.is_told:
                    self.is_told = True
                    told.put_nowait(None)


async def by_events(port: int, query: str) -> None:
    _, events = await asyncio.get_running_loop().create_connection(lambda: Events(query), "127.0.0.1", port)
    await events.ended


async def by_polls(port: int, query: str) -> None:
    """Asks again after each answer, over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def ask(address: str) -> str:
        writer.write(f"GET /{address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        headers: dict[str, Any] = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
        if length := int(headers.get("content-length", 0)):
            note(await reader.readexactly(length), time.monotonic())
        return str(headers["stream-next-offset"])

    offset = await ask("stream/?offset=now")
    told.put_nowait(None)
    while True:
        offset = await ask(f"{query}&offset={offset}")


async def run(port: int, query: str, browsers: int) -> None:
    """Connect, and listen until all have the last fact."""
    one = by_polls if "long-poll" in query else by_events
    address = query if "long-poll" in query else f"{query}&offset=now"
    running = [asyncio.create_task(one(port, address)) for _ in range(browsers)]
    for _ in running:
        await told.get()
    sys.stdout.write("connected\n")
    sys.stdout.flush()
    last = int(await asyncio.to_thread(sys.stdin.readline))
    while len(times[last]) < browsers:
        await asyncio.sleep(0.01)
        for task in running:
            if task.done():
                raise RuntimeError("an answer ended") from task.exception()
    sys.stdout.write(json.dumps(times) + "\n")


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
