"""A replication server that says whatever a test wants, to every client that connects."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from streams.conf import stream_settings
from tests.support.waiting import DEADLINE_SECONDS


class LyingServer:
    """Sends its greeting and then ``said`` on each new connection. ``connects`` counts them."""

    def __init__(self, said: str) -> None:
        self.said = said
        self.connects = 0
        self._clients: list[socket.socket] = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]

    def serve(self) -> None:
        """Runs until the listening socket is closed."""
        while True:
            try:
                client, _ = self.listening.accept()
            except OSError:
                return
            self._clients.append(client)
            self.connects += 1
            with suppress(OSError):
                client.sendall(f"SERVER {stream_settings().server_name}\nPING 1\n{self.said}".encode())

    def close(self) -> None:
        with suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        for one in (self.listening, *self._clients):
            one.close()


@contextmanager
def lying_server(said: str) -> Iterator[LyingServer]:
    """Such a server, for the time of the block."""
    server = LyingServer(said)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(DEADLINE_SECONDS)
