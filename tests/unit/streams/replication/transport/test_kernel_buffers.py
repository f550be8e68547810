"""What lies in the system's buffers of a connection, asked of real sockets."""

from __future__ import annotations

import socket
import sys

import pytest

from streams.replication.transport import kernel_buffers
from streams.replication.transport.kernel_buffers import kernel_bytes, unsent_bytes


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_bytes_that_nobody_reads_are_told_on_both_sides(pair):
    client, accepted = pair
    assert kernel_bytes(client.fileno()) == kernel_bytes(accepted.fileno()) == (0, 0)
    client.sendall(b"x" * 1_000)
    accepted.recv(1, socket.MSG_PEEK)
    assert unsent_bytes(client.fileno()) == 0
    assert kernel_bytes(accepted.fileno()) == (0, 1_000)
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            client.send(b"x" * 65_536)
    assert kernel_bytes(client.fileno())[0] >= unsent_bytes(client.fileno()) > 0


def test_a_socket_that_was_closed_is_empty(pair):
    client, _ = pair
    number = client.fileno()
    client.close()
    assert kernel_bytes(number) == kernel_bytes(-1) == (0, 0)
    assert unsent_bytes(number) == unsent_bytes(-1) == 0


def test_other_systems_are_taken_for_empty(pair, monkeypatch):
    monkeypatch.setattr(kernel_buffers.sys, "platform", "plan9")
    assert kernel_bytes(pair[1].fileno()) == (0, 0)
