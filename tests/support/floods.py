"""Attacks on the ports of a running site, over plain sockets: what they cost it, and whether others are answered meanwhile.

``python -m tests.support.floods PID HTTP_PORT REPLICATION_PORT [ATTACK …]`` runs them in full size against a site that runs
already.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil

from tests.support.waiting import DEADLINE_SECONDS

__all__ = ["Probe", "connect", "drain", "head", "memory", "read_slowly", "status_of", "statuses"]

STATIC = "/static/unfold/css/styles.css"
"""A third of a megabyte."""


def head(path: str = "/health/live", more: str = "", method: str = "GET") -> bytes:
    """A request without a body."""
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}\r\n".encode()


def connect(port: int, said: bytes = b"", *, address: str = "127.0.0.1", takes: int = 0) -> socket.socket:
    """A connection that said something; ``takes``: its receive buffer."""
    made = socket.socket()
    made.settimeout(DEADLINE_SECONDS)
    if takes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, takes)
    made.bind((address, 0))
    made.connect(("127.0.0.1", port))
    if said:
        made.sendall(said)
    return made


def status_of(port: int, path: str = "/health/live", seconds: float = 60.0, more: str = "") -> int:
    """The status of an answer on a connection of its own; 0: there was none in time."""
    with contextlib.suppress(OSError), socket.socket() as made:
        made.settimeout(seconds)
        made.connect(("127.0.0.1", port))
        made.sendall(head(path, f"{more}Connection: close\r\n"))
        words = made.recv(200).split(b" ", 2)
        return int(words[1]) if len(words) > 1 else 0
    return 0


def read_slowly(made: socket.socket, seconds: float) -> None:
    """Takes 20 kB a second. Raises if the connection ends meanwhile."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert made.recv(2_000)
        time.sleep(0.1)


def memory(process: int) -> int:
    """Bytes that the process has in memory."""
    return int(psutil.Process(process).memory_info().rss)


@dataclass
class Seen:
    """Answers of ``/health/live`` meanwhile."""

    seconds: list[float]
    statuses: list[int]
    memory: int = 0

    @property
    def slowest(self) -> float:
        """In seconds."""
        return max(self.seconds, default=0.0)


class Probe:
    """Asks for ``/health/live`` again and again while it is entered, and looks at the process's memory."""

    def __init__(self, port: int, process: int, also: Callable[[], None] = lambda: None) -> None:
        self.seen = Seen([], [])
        self._port, self._process, self._also = port, process, also
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Seen:
        self._thread.start()
        return self.seen

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            begun = time.monotonic()
            self.seen.statuses.append(status_of(self._port))
            self.seen.seconds.append(time.monotonic() - begun)
            self.seen.memory = max(self.seen.memory, memory(self._process))
            self._also()


def statuses(port: int, said: bytes, number: int, seconds: float = 60.0) -> list[int]:
    """So many clients at once, each with one request: the statuses of their answers, read to the end; 0: none."""
    found = [0] * number
    selector = selectors.DefaultSelector()
    for one in range(number):
        made = socket.socket()
        made.setblocking(False)
        made.connect_ex(("127.0.0.1", port))
        selector.register(made, selectors.EVENT_WRITE, one)
    deadline = time.monotonic() + seconds
    while selector.get_map() and time.monotonic() < deadline:
        for key, events in selector.select(1.0):
            made = key.fileobj
            assert isinstance(made, socket.socket)
            if events & selectors.EVENT_WRITE:
                with contextlib.suppress(OSError):
                    made.send(said)
                selector.modify(made, selectors.EVENT_READ, key.data)
            elif not _read(made, found, key.data):
                selector.unregister(made)
                made.close()
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    selector.close()
    return found


def _read(made: socket.socket, found: list[int], one: int) -> bool:
    try:
        data = made.recv(1 << 20)
    except BlockingIOError:
        return True
    except OSError:
        return False
    if data and not found[one]:
        words = data.split(b" ", 2)
        found[one] = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    return bool(data)


# --- by hand ------------------------------------------------------------------------------------------------------


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _pipelined(http: int, _: int) -> Iterator[object]:
    said = head(STATIC)
    for _ in range(5):
        yield connect(http, said * (63_000 // len(said)), takes=4096)
    time.sleep(20)


def _half_sent(http: int, _: int) -> Iterator[object]:
    for number in range(2_050):
        yield connect(http, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", address=f"127.0.{number % 20}.1")
    time.sleep(5)


def _cookies(http: int, _: int) -> Iterator[object]:
    for turn in range(3):
        said = head("/admin/", f"Cookie: sessionid=madeup{turn}abcdefghijklmnopqrstuv\r\nConnection: close\r\n")
        answers = statuses(http, said, 1_500)
        _tell(f"  answers: { {one: answers.count(one) for one in set(answers)} }")
        yield None


def _scrapes(http: int, _: int) -> Iterator[object]:
    answers = statuses(http, head("/metrics", "Connection: close\r\n"), 400)
    _tell(f"  answers: { {one: answers.count(one) for one in set(answers)} }")
    yield None


def _replicates(_: int, replication: int) -> Iterator[object]:
    yield from _lines(replication, b"REPLICATE\n")


def _lines(replication: int, line: bytes, seconds: float = 8.0) -> Iterator[object]:
    flood = connect(replication)
    yield flood
    threading.Thread(target=drain, args=(flood,), daemon=True).start()
    deadline = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline:
            flood.sendall(line * 1000)


def drain(made: socket.socket) -> None:
    """Read and forget, to the end."""
    with contextlib.suppress(OSError):
        while made.recv(1 << 20):
            pass


ATTACKS = {
    "pipelined": _pipelined,
    "half-sent": _half_sent,
    "cookies": _cookies,
    "scrapes": _scrapes,
    "replicates": _replicates,
    "pings": lambda _, port: _lines(port, b"PING 1\n"),
    "syncs": lambda _, port: _lines(port, b"USER_SYNC w @u:x start 1\n"),
    "names": lambda _, port: _lines(port, b"NAME abcdef\n"),
    "ups": lambda _, port: _lines(port, b"REMOTE_SERVER_UP example.org\n"),
    "acks": lambda _, port: _lines(port, b"FEDERATION_ACK x 5\n"),
    "long": lambda _, port: _lines(port, b"ERROR " + b"x" * 16_000 + b"\n"),
}


def main() -> None:
    """Run the attacks that the command line names, or all."""
    process, http, replication, *wanted = sys.argv[1:]
    for name in wanted or ATTACKS:
        before = memory(int(process))
        with Probe(int(http), int(process)) as seen:
            held = list(ATTACKS[name](int(http), int(replication)))
        counted = {one: seen.statuses.count(one) for one in set(seen.statuses)}
        _tell(
            f"{name}: memory {before / 1e6:.0f} -> {seen.memory / 1e6:.0f} MB; /health/live {counted}, "
            f"slowest {seen.slowest * 1000:.0f} ms, middle {sorted(seen.seconds)[len(seen.seconds) // 2] * 1000:.0f} ms"
        )
        for one in held:
            if isinstance(one, socket.socket):
                one.close()
        time.sleep(3)


if __name__ == "__main__":
    main()
