"""Ports of tests: nobody takes them who does not name them."""

import socket
from pathlib import Path

from tests.support.ports import free_port, free_ports


def test_ports_are_free_different_and_not_linux_own():
    chosen = free_ports(50)
    assert len(set(chosen)) == 50
    first_of_linux = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert first_of_linux < 12_000 or all(port < first_of_linux for port in chosen)
    for port in chosen:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_in_use_is_not_given(monkeypatch):
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        monkeypatch.setattr("tests.support.ports._chance.choice", lambda ports: next(draws))
        draws = iter([taken.getsockname()[1], other := taken.getsockname()[1] + 1, other + 1, other + 2])
        assert free_port() > taken.getsockname()[1]
