"""A thousand clients that connect at once: the kernel keeps all of them until the server has time, and each is served."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.floods import head, status_of
from tests.support.waiting import wait_until
from tests.support.wire_client import ready_ports

pytestmark = pytest.mark.django_db(transaction=True)
CROWD = 1_000
#: What the kernel allows at most, whatever a program asks for.
KERNEL = Path("/proc/sys/net/core/somaxconn")
#: Listener -> beginning of an answer. The port of metrics turns away the oldest clients of a crowd.
ANSWERS = {"replication": b"SERVER ", "http": b"HTTP/1.1 ", "metrics": b""}
REQUEST = head("/health/live", "Connection: close\r\n")


@pytest.fixture(scope="module")
def number() -> int:
    return min(CROWD, int(KERNEL.read_text())) if KERNEL.exists() else 100


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that accepts nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def crowd(port: int, number: int) -> Iterator[list[socket.socket]]:
    made = []
    try:
        for _ in range(number):
            made.append(socket.socket())
            made[-1].setblocking(False)
            made[-1].connect_ex(("127.0.0.1", port))
        yield made
    finally:
        for one in made:
            one.close()


def that(event: int, clients: list[socket.socket]) -> list[socket.socket]:
    """Those whom ``event`` has reached: POLLOUT that they are connected, POLLIN that they have an answer."""
    poll, by_number = select.poll(), {one.fileno(): one for one in clients}
    for one in by_number:
        poll.register(one, event)
    return [by_number[one] for one, found in poll.poll(0) if found & event]


@pytest.mark.skipif(not KERNEL.exists(), reason="needs /proc")
@pytest.mark.parametrize(("listener", "answer"), ANSWERS.items())
def test_a_crowd_waits_in_the_kernel_and_each_is_served(start_manage, free_port, number, listener, answer):
    """The event loop's own ``listen`` made the backlog 100: 46 of 1,000 followers heard nothing for a minute."""
    env = {"REPLSITE_METRICS_PORTS": str(free_port)}
    process = start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", env=env)
    port = (ready_ports(process) | {"metrics": free_port})[listener]
    with stopped(process.pid), crowd(port, number) as clients:
        wait_until(lambda: len(that(select.POLLOUT, clients)) == number, what="the kernel has them all")
        for one in clients if listener == "http" else ():
            one.sendall(REQUEST)
        os.kill(process.pid, signal.SIGCONT)
        if answer:
            wait_until(lambda: len(that(select.POLLIN, clients)) == number, what="each is served")
            assert all(one.recv(100).startswith(answer) for one in clients)
    assert listener == "replication" or status_of(port, "/metrics") == 200
