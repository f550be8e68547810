"""A client on a plain blocking socket: what netcat does, with deadlines. And how tests start a server."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

from tests.support.waiting import DEADLINE_SECONDS


class WireClient:
    """Lines to and from a replication port."""

    def __init__(self, port: int, hello: str = "", takes: int = 0) -> None:
        """``takes``: its receive buffer."""
        self.socket = socket.socket()
        self.socket.settimeout(DEADLINE_SECONDS)
        if takes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, takes)
        self.socket.connect(("127.0.0.1", port))
        self.lines: list[str] = []
        self._rest = b""
        self.at_end = False
        if hello:
            self.say(hello)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, text: str) -> None:
        """Send lines; the last line feed is added."""
        self.socket.sendall(text.encode() + b"\n")

    def read_until(self, found: Callable[[str], bool] | str, seconds: float = DEADLINE_SECONDS) -> str:
        """Read until a line that was not looked at before matches; that line."""
        matches = found if callable(found) else lambda line: line.startswith(found)
        deadline = time.monotonic() + seconds
        seen = 0
        while True:
            for line in self.lines[seen:]:
                if matches(line):
                    return line
            seen = len(self.lines)
            if self.at_end or time.monotonic() > deadline:
                raise AssertionError(f"no line {found!r} within {seconds} s; got {self.lines[-20:]}")
            self._read(deadline)

    def read_to_end(self, seconds: float = DEADLINE_SECONDS) -> list[str]:
        """All lines until the server closes."""
        deadline = time.monotonic() + seconds
        while not self.at_end:
            if time.monotonic() > deadline:
                raise AssertionError(f"still open after {seconds} s; got {self.lines[-20:]}")
            self._read(deadline)
        return self.lines

    def of(self, *words: str) -> list[str]:
        """Lines that begin with these words."""
        return [line for line in self.lines if line.startswith(" ".join(words))]

    def _read(self, deadline: float) -> None:
        self.socket.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            return
        except ConnectionResetError:
            data = b""
        self.at_end = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.lines += [line.decode() for line in lines]


def positioned(port: int, name: str = "test") -> WireClient:
    """A client that was told all positions."""
    client = WireClient(port, f"NAME {name}\nREPLICATE")
    client.read_until("POSITION caches")
    return client


def ready_ports(process: subprocess.Popen[str]) -> dict[str, int]:
    """Ports by protocol, from the line that a server prints when it accepts."""
    assert process.stdout is not None
    line = process.stdout.readline()
    word, *parts = line.split()
    assert word == "ready", f"not ready: {line!r}"
    return {name: int(address.rpartition(":")[2]) for name, address in (part.split("=") for part in parts)}


def start_replication(start_manage: Any, **env: str) -> int:
    """Start ``runreplication`` on a free port, and wait for it; the port."""
    return ready_ports(start_manage("runreplication", "--bind", "127.0.0.1:0", env=env))["replication"]
