"""Many viewers of the live page and many replication connections at once, from one process, and what they cost the server."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
from django.db import connections

from streams.models import Reader
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.websocket_client import WebSocketClient

__all__ = ["Figures", "watch"]

#: After so many pages of everybody the server has what it needs for them, and takes no more.
SETTLED_PAGES = 4


@dataclass
class Figures:
    """What was seen from outside."""

    seconds: float = 0.0
    messages: int = 0
    numbers: set[int] = field(default_factory=set)
    """Of pages: however many viewers there are, each is one look at the database."""
    wire_bytes: int = 0
    memory_before: int = 0
    memory_with: int = 0
    memory_after: int = 0
    """Of the server: before anybody came; when all were there, on the page too, and had been sent some; and at the end."""
    cpu_seconds: float = 0.0

    def __str__(self) -> str:
        mega = [f"{size / 1e6:.0f}" for size in (self.memory_before, self.memory_with, self.memory_after)]
        return (
            f"{self.messages:,} messages of {len(self.numbers)} pages in {self.seconds:.0f} s, {self.cpu_seconds:.1f} s of CPU, "
            f"{self.wire_bytes:,} bytes on the wire; memory {' -> '.join(mega)} MB"
        )


@dataclass(frozen=True)
class Server:
    """A serving process and how to get in."""

    process: psutil.Process
    http: int
    replication: int
    cookie: str


async def watch(server: Server, websockets: int, links: int, seconds: float) -> Figures:
    """So many of each, all there at once, for so long."""
    found = Figures(memory_before=server.process.memory_info().rss)
    limit = asyncio.Semaphore(20)

    viewers: list[WebSocketClient] = []
    tasks: list[asyncio.Task[None]] = []

    async def come() -> None:
        async with limit:
            viewers.append(await WebSocketClient.connect(server.http, server.cookie))
            tasks.append(asyncio.create_task(_view(viewers[-1], found)))

    await asyncio.gather(*(come() for _ in range(websockets)))
    wires = [await asyncio.open_connection("127.0.0.1", server.replication) for _ in range(links)]
    tasks += [asyncio.create_task(_follow(reader, writer, found)) for reader, writer in wires]
    await asyncio.to_thread(_until_all_are_on_the_page, links)
    found.numbers.clear()
    found.messages = 0
    while len(found.numbers) < SETTLED_PAGES or found.messages < websockets:  # noqa: ASYNC110 - the server sets the pace
        await asyncio.sleep(0.1)
    found.memory_with, cpu = server.process.memory_info().rss, _cpu(server.process)
    found.messages, begun = 0, time.monotonic()
    found.numbers.clear()
    await asyncio.sleep(seconds)
    found.seconds, found.cpu_seconds = time.monotonic() - begun, _cpu(server.process) - cpu
    found.memory_after = server.process.memory_info().rss
    for task in tasks:
        assert not task.done() or task.exception() is None, task
        task.cancel()
    for viewer in viewers:
        viewer.close()
    for _, writer in wires:
        writer.transport.abort()
    await asyncio.wait(tasks)
    return found


def _until_all_are_on_the_page(number: int) -> None:
    """A connection is a row of the database, written after a while, and then takes its part of every snapshot."""
    try:
        wait_until(
            lambda: Reader.objects.filter(kind="connection", closed_at=None).count() >= number, 4 * DEADLINE_SECONDS
        )
    finally:
        connections.close_all()  # those of this thread


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def _view(viewer: WebSocketClient, found: Figures) -> None:
    have = 0
    while True:
        viewer.say({"have": have})
        have = await viewer.number(300)
        found.numbers.add(have)
        found.messages += 1


async def _follow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, found: Figures) -> None:
    writer.write(b"NAME crowd\nREPLICATE\n")
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            found.wire_bytes += len(data)
            if b"PING" in data:
                writer.write(b"PING 1\n")
