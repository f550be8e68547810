"""A real 1.43 worker's connection, second by second: its recorded lines at their times, into our consumer, peer and reports.

What it hears is held against the rules of a 1.43 client: which lines it can read, when it gives the server up, what makes it
fetch or fail. The clock jumps, so hours take seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import re

import pytest

from streams.conf import StreamSettings
from streams.replication.protocol.commands import UserIP, UserSync, parse_line
from streams.replication.server.broadcaster import Broadcaster
from streams.replication.server.consumer import ReplicationConsumer
from streams.replication.server.worker_reports import WorkerReports
from tests.protocol import recordings
from tests.support.fast_clock import FastLoop, warped
from tests.support.tcp_scope import TcpCommunicator

SERVER_NAME = "localhost:19110"
#: What a 1.43 client can read, character by character: the names of its streams and processes hold no blanks.
READABLE = re.compile(
    rb"SERVER \S+|PING \d+|POSITION [a-z_]+ \S+ -?\d+ -?\d+|RDATA [a-z_]+ \S+ (batch|\d+) \[.*\]|REMOTE_SERVER_UP .*"
)
#: A client of 1.43 looks every 5 s, and gives a server up that said nothing for 25 s.
GIVES_UP_SECONDS = 25.0


def said_by_the_worker() -> list[tuple[float, bytes]]:
    """The recorded lines with their times, in seconds since the connection: PING and reports carry theirs."""
    start, at, found = None, 0.0, []
    for step in recordings.steps("w1_real_generic_worker"):
        if step.who != "client":
            continue
        stamp = re.search(rb"(\d{13})", step.data)
        if (stamp and not step.data.startswith(b"USER_SYNC")) or (stamp and b" end " in step.data):
            seconds = int(stamp[1]) / 1000
            start = seconds if start is None else start
            at = max(at, seconds - start)
        found.append((at, step.data))
    return found


class Worker:
    """The recorded worker, connected to our server; ``heard`` has every line with its time."""

    def __init__(self, loop: FastLoop) -> None:
        self.loop = loop
        self.broadcaster = Broadcaster(StreamSettings(server_name=SERVER_NAME, writer="master"))
        self.broadcaster._announcer.start({})
        self.reports = WorkerReports(self.broadcaster)
        self.client = TcpCommunicator(ReplicationConsumer.as_asgi(broadcaster=self.broadcaster, reports=self.reports))
        self.heard: list[tuple[float, bytes]] = []
        write = self.client.transport.write

        def listen(data: bytes, lines: int | None = None) -> None:
            write(data)
            self.heard += [(loop.time(), line) for line in data.splitlines()]

        self.client.transport.write = listen

    async def follow(self, rounds: int) -> None:
        await self.client.connect()
        lines = said_by_the_worker()
        for number in range(rounds):
            began = self.loop.time()
            for at, line in lines[3:] if number else lines:
                await asyncio.sleep(max(0.0, began + at - self.loop.time()))
                await self.client.send(line)
                if number == 0 and line.startswith(b"USER_"):
                    await asyncio.sleep(0)
            await asyncio.sleep(5.0)
        self.seconds = self.loop.time() - self.heard[0][0]

    async def leave(self) -> None:
        await self.client.disconnect()


@pytest.fixture(scope="module")
def worker():
    """After three hours with the recorded lines over and over."""
    with warped() as loop:
        made = Worker(loop)
        loop.run_until_complete(made.follow(rounds=28))
        yield made
        loop.run_until_complete(made.leave())


def test_it_follows_for_hours_without_an_error(worker):
    assert worker.seconds > 3 * 3600 - 120
    assert len(worker.heard) > 2_000
    assert not [line for _, line in worker.heard if line.startswith(b"ERROR")]
    assert not worker.client.transport.is_closing
    assert worker.broadcaster.closed == {}


def test_it_can_read_every_line(worker):
    assert not [line for _, line in worker.heard if not READABLE.fullmatch(line)]


def test_it_never_gives_the_server_up(worker):
    times = [at for at, _ in worker.heard]
    assert max(b - a for a, b in itertools.pairwise(times)) <= 5.1 < GIVES_UP_SECONDS
    assert worker.loop.time() - times[-1] <= 5.1


def test_a_worker_that_falls_silent_is_given_up_after_fifteen_seconds():
    with warped() as loop:
        silent = Worker(loop)

        async def fall_silent() -> None:
            await silent.client.connect()
            await silent.client.send(b"NAME worker1\nPING 1\n")
            await asyncio.sleep(16.0)

        loop.run_until_complete(fall_silent())
        at, line = silent.heard[-1]
        assert (line, round(at - silent.heard[0][0])) == (b"ERROR ping timeout", 15)
        loop.run_until_complete(silent.leave())


def test_netcat_may_listen_for_hours_without_a_word():
    with warped() as loop:
        netcat = Worker(loop)

        async def listen() -> None:
            await netcat.client.connect()
            await asyncio.sleep(3 * 3600.0)

        loop.run_until_complete(listen())
        assert {line.split()[0] for _, line in netcat.heard} == {b"SERVER", b"PING"}
        assert not netcat.client.transport.is_closing
        loop.run_until_complete(netcat.leave())


def test_it_is_greeted_with_its_own_server_name_and_a_time(worker):
    assert worker.heard[0][1] == b"SERVER " + SERVER_NAME.encode()
    assert re.fullmatch(rb"PING \d{13}", worker.heard[1][1])


def test_positions_come_in_the_order_of_the_recording_with_nothing_missing(worker):
    """prev = new, as an unmodified client expects of an answer: it fetches nothing when it is there already."""
    recorded = [
        parse_line(step.data[:-1].decode()).stream
        for step in recordings.steps("w1_real_generic_worker")
        if step.who == "server" and step.data.startswith(b"POSITION")
    ][:16]
    ours = [parse_line(line.decode()) for _, line in worker.heard if line.startswith(b"POSITION")]
    names = [position.stream for position in ours[: len({position.stream for position in ours})]]
    assert [name for name in names if name in recorded] == [name for name in recorded if name in names]
    assert {position.instance for position in ours} == {"master"}
    assert all(position.previous == position.new for position in ours)


def test_what_it_reported_is_there(worker):
    commands = worker.broadcaster.commands
    assert (commands["USER_SYNC"], commands["USER_IP"]) == (5 * 28, 2 * 28)
    reports = worker.reports._buffer.drain()
    assert {sync.user for sync in reports.starts} == {"@carol:localhost:19110"}
    assert {user for user, _, _ in reports.addresses} == {"@carol:localhost:19110", "@ivy:localhost:19110"}
    assert worker.reports.figures() == {}


def test_the_recording_has_what_this_test_needs():
    lines = said_by_the_worker()
    assert [line for _, line in lines[:3]] == [b"NAME worker1\n", b"PING 1795226126422\n", b"REPLICATE \n"]
    assert 380 < lines[-1][0] < 395
    kinds = {type(parse_line(line[:-1].decode())) for _, line in lines}
    assert {UserSync, UserIP} <= kinds
    times = [at for at, _ in lines]
    assert times == sorted(times)
