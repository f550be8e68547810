"""A server that ends answers each connection that was opened to it: a proxy must not send a request again that it has sent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import DEADLINE_SECONDS, wait_until

REQUEST = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@pytest.fixture
def server() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", "tests.support.small_server"], stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def port_of(server: subprocess.Popen[bytes]) -> int:
    return int(server.stdout.readline())


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS)


def answer(connection: socket.socket) -> str:
    with connection:
        return connection.recv(1_000).split(b"\r\n")[0].decode()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_all_that_the_kernel_has_queued_are_answered(server):
    """The process is stopped while 300 connect, so that none is accepted before the order to end."""
    port = port_of(server)
    assert answer_to(connect(port)) == "HTTP/1.1 200 OK"
    os.kill(server.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(server.pid) == "T", what="the process is stopped")
    clients = [connect(port) for _ in range(300)]
    for client in clients:
        client.sendall(REQUEST)
    server.terminate()
    os.kill(server.pid, signal.SIGCONT)
    assert Counter(answer(client) for client in clients) == {"HTTP/1.1 200 OK": 300}
    assert server.wait(DEADLINE_SECONDS) == 0


def answer_to(connection: socket.socket) -> str:
    connection.sendall(REQUEST)
    return answer(connection)


def test_a_client_that_sends_its_request_late_is_answered(server):
    port = port_of(server)
    client = connect(port)
    server.terminate()
    wait_until(lambda: not listens(server.pid), what="the port is closed")
    assert answer_to(client) == "HTTP/1.1 200 OK"
    assert server.wait(DEADLINE_SECONDS) == 0


def listens(pid: int) -> bool:
    return any(one.status == psutil.CONN_LISTEN for one in psutil.Process(pid).net_connections("tcp"))


def test_a_client_that_sends_nothing_does_not_hold_the_end_up(server):
    port = port_of(server)
    with connect(port):
        server.terminate()
        assert server.wait(DEADLINE_SECONDS) == 0


def test_nobody_who_connects_while_it_ends_is_reset(server):
    port, seen, is_over = port_of(server), Counter(), threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            try:
                client = connect(port)
            except ConnectionRefusedError:
                seen["refused"] += 1
                return
            try:
                seen[answer_to(client)] += 1
            except OSError as error:
                seen[repr(error)] += 1

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    wait_until(lambda: seen["HTTP/1.1 200 OK"] > 50, what="requests are answered")
    server.terminate()
    assert server.wait(DEADLINE_SECONDS) == 0
    is_over.set()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert set(seen) == {"HTTP/1.1 200 OK", "refused"}


def test_requests_that_are_cut_leave_nothing_behind_that_complains():
    """Tasks of Django went on without the thread of their request, each with a traceback."""
    command = [sys.executable, "-m", "tests.support.small_server", "slow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        port = port_of(server)
        clients = [connect(port) for _ in range(5)]
        for client in clients:
            client.sendall(REQUEST)
        for _ in clients:
            assert server.stdout.readline() == b"began\n"
        server.terminate()
        _, words = server.communicate(timeout=DEADLINE_SECONDS)
        for client in clients:
            client.close()
    assert server.returncode == 0
    assert b"requests_cut" in words
    assert b"Traceback" not in words, words.decode()
