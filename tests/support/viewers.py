"""Many viewers of the live page and many replication connections at once, from one process, and what they cost the server."""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
from django.db import connections

from streams.models import Reader
from tests.support.waiting import DEADLINE_SECONDS, wait_until

__all__ = ["Figures", "watch"]

#: After so many pages of everybody the server has what it needs for them, and takes no more.
SETTLED_PAGES = 4


@dataclass
class Figures:
    """What was seen from outside."""

    seconds: float = 0.0
    answers: int = 0
    seconds_of_answers: list[float] = field(default_factory=list)
    moments: set[bytes] = field(default_factory=set)
    """Of pages: however many viewers there are, each is one look at the database."""
    page_bytes: int = 0
    wire_bytes: int = 0
    memory_before: int = 0
    memory_with: int = 0
    memory_after: int = 0
    """Of the server: before anybody came; when all were there, on the page too, and had been sent some; and at the end."""
    cpu_seconds: float = 0.0

    def forget(self) -> None:
        """Begin to count answers."""
        self.answers = self.page_bytes = 0
        self.moments.clear()
        self.seconds_of_answers.clear()

    def __str__(self) -> str:
        mega = [f"{size / 1e6:.0f}" for size in (self.memory_before, self.memory_with, self.memory_after)]
        return (
            f"{self.answers:,} answers of {len(self.moments)} pages in {self.seconds:.0f} s, {self.page_bytes:,} bytes, "
            f"each after {statistics.median(self.seconds_of_answers) * 1e3:.0f} ms; {self.cpu_seconds:.1f} s of CPU, "
            f"{self.wire_bytes:,} bytes on the wire; memory {' -> '.join(mega)} MB"
        )


@dataclass(frozen=True)
class Server:
    """A serving process and how to get in."""

    process: psutil.Process
    http: int
    replication: int
    cookie: str


async def watch(server: Server, number: int, links: int, seconds: float) -> Figures:
    """So many of each, all there at once, for so long."""
    found = Figures(memory_before=server.process.memory_info().rss)

    tasks = [asyncio.create_task(_view(server, found)) for _ in range(number)]
    wires = [await asyncio.open_connection("127.0.0.1", server.replication) for _ in range(links)]
    tasks += [asyncio.create_task(_follow(reader, writer, found)) for reader, writer in wires]
    await asyncio.to_thread(_until_all_are_on_the_page, links)
    found.forget()
    while len(found.moments) < SETTLED_PAGES or found.answers < number:  # noqa: ASYNC110 - the server sets the pace
        await asyncio.sleep(0.1)
    found.memory_with, cpu = server.process.memory_info().rss, _cpu(server.process)
    begun = time.monotonic()
    found.forget()
    await asyncio.sleep(seconds)
    found.seconds, found.cpu_seconds = time.monotonic() - begun, _cpu(server.process) - cpu
    found.memory_after = server.process.memory_info().rss
    for task in tasks:
        assert not task.done() or task.exception() is None, task
        task.cancel()
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


async def _view(server: Server, found: Figures) -> None:
    """As the page's script does it: each second, with the tag of what it has, on one connection."""
    await asyncio.sleep(random.random())  # people do not come all at once
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http)
    said = f"GET /admin/live/data/ HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {server.cookie}\r\nAccept-Encoding: gzip\r\n"
    tag = ""
    try:
        while True:
            asked_at = time.monotonic()
            writer.write(f"{said}If-None-Match: {tag}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.split(b" ", 2)[1] in (b"200", b"304"), head
            length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
            found.page_bytes += len(await reader.readexactly(int(length[1]) if length else 0))
            found.seconds_of_answers.append(time.monotonic() - asked_at)
            found.moments.add(_header(head, b"as-of"))
            found.answers += 1
            tag = _header(head, b"etag").decode()
            await asyncio.sleep(1.0)
    finally:
        writer.transport.abort()


def _header(head: bytes, name: bytes) -> bytes:
    said = re.search(rb"\r\n%s: ([^\r]+)" % name, head, re.IGNORECASE)
    assert said, head
    return said[1]


async def _follow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, found: Figures) -> None:
    writer.write(b"NAME crowd\nREPLICATE\n")
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            found.wire_bytes += len(data)
            if b"PING" in data:
                writer.write(b"PING 1\n")
