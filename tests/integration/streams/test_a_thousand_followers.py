"""A thousand followers at once: those that speak in pieces, late, or not at all keep no other from its positions and facts."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest
from django.db import connections

from tests.support.async_waiting import wait_for
from tests.support.floods import status_of
from tests.support.wire_client import ready_ports
from tests.support.writing import append

pytestmark = pytest.mark.django_db(transaction=True)
#: What a client of each kind says at first.
SAYS = {
    "plain": "NAME plain\nREPLICATE\n",
    "in pieces": "NAME pieces\nREPLICATE\n",
    "named late": "REPLICATE\n",
    "deaf": "NAME deaf\nREPLICATE\n",
    "half a line": "NAME half\nREPLI",
    "silent": "",
}
NUMBERS = {"plain": 700, "in pieces": 100, "named late": 50, "deaf": 50, "half a line": 50, "silent": 50}
FOLLOW = ("plain", "in pieces", "named late")


class Crowd:
    """The clients, and how many of each kind were told positions, and then a fact."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.positioned: Counter[str] = Counter()
        self.informed: Counter[str] = Counter()
        self.over = asyncio.Event()

    async def follow(self, kind: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        says = SAYS[kind].encode()
        for piece in [bytes([one]) for one in says] if kind == "in pieces" else [says]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01 * (kind == "in pieces"))
        if kind in FOLLOW:
            await self._read(reader, writer, kind)
        await self.over.wait()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: str) -> None:
        await self._line(reader, writer, b"POSITION caches")
        if kind == "named late":
            writer.write(b"NAME late\n")
        self.positioned[kind] += 1
        await self._line(reader, writer, b"RDATA caches")
        self.informed[kind] += 1

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begin: bytes) -> None:
        while not (line := await reader.readline()).startswith(begin):
            assert line, "the server has closed the connection"
            if line.startswith(b"PING"):
                writer.write(b"PING 1\n")


def _append() -> None:
    append()
    connections.close_all()


async def _attend(http: int, replication: int) -> None:
    crowd, wanted = Crowd(replication), {kind: NUMBERS[kind] for kind in FOLLOW}
    clients = [asyncio.create_task(crowd.follow(kind)) for kind, number in NUMBERS.items() for _ in range(number)]
    try:
        await wait_for(lambda: crowd.positioned == wanted)
        assert await asyncio.to_thread(status_of, http, "/health") == 200
        await asyncio.to_thread(_append)
        await wait_for(lambda: crowd.informed == wanted)
        assert await asyncio.to_thread(status_of, http, "/metrics") == 200
    finally:
        crowd.over.set()
        await asyncio.gather(*clients)


def test_each_is_told_positions_and_the_next_fact(start_manage):
    append()
    process = start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0")
    ports = ready_ports(process)
    asyncio.run(_attend(ports["http"], ports["replication"]))
