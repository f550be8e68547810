"""Ports for listeners of tests, which nobody else takes between the choice and the bind.

Linux gives ports out of one range to every connection and to every listener on port 0. A port of that range that was
free a moment ago may be gone when a server wants it: with both cores busy nginx once met ``Address already in use``.
So these ports come from below the range, each process draws by chance, and none is given twice by one process.
"""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_LOWEST = 10_000
_DRAWS = 1_000
_given: set[int] = set()
_chance = random.SystemRandom()


def free_port() -> int:
    """Returns a port of 127.0.0.1 that is free, and that Linux gives to nobody who does not name it."""
    first_of_linux = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(_LOWEST, first_of_linux) if first_of_linux > _LOWEST + _DRAWS else range(_LOWEST, 60_000)
    for _ in range(_DRAWS):
        port = _chance.choice(ports)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _given:
                _given.add(port)
                return port
    raise AssertionError(f"{_DRAWS} ports of {ports} were tried, and none is free")


def free_ports(count: int) -> list[int]:
    """Returns ports of ``free_port``, all different."""
    return [free_port() for _ in range(count)]
