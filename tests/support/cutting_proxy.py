"""A TCP proxy in front of PostgreSQL that cuts the connection at COMMIT (or at other words): before the server sees it, or
before the client hears the answer."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from enum import Enum, auto

from tests.support.waiting import DEADLINE_SECONDS

COMMIT = b"COMMIT\x00"


class Cut(Enum):
    """Which half of the conversation is lost."""

    NOTHING = auto()
    QUESTION = auto()
    ANSWER = auto()


class CuttingProxy:
    """Serves each connection in a thread; ``cut`` says what happens at the next message with the words ``at``."""

    def __init__(self, host: str, port: int, at: bytes = COMMIT) -> None:
        self.cut = Cut.NOTHING
        self._at = at
        self._clients: list[socket.socket] = []
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(DEADLINE_SECONDS)

    def drop_all(self) -> None:
        """Cut all connections now, on the client's side only: the server goes on with what it was asked."""
        for client in self._clients:
            with contextlib.suppress(OSError):  # closed already
                client.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._clients.append(client)
        with client, socket.create_connection(self._target) as server:
            self._forward(client, server)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        lost_answer = False
        while True:
            for end in select.select([client, server], [], [])[0]:
                data = end.recv(65536)
                if not data or (lost_answer and end is server):
                    return
                if end is client and self._at in data and self.cut is Cut.QUESTION:
                    return
                lost_answer |= end is client and self._at in data and self.cut is Cut.ANSWER
                other[end].sendall(data)
