"""A client of the broadcaster without a connection: what is written to it is kept."""

from __future__ import annotations

import time

from streams.replication.protocol.connection import ServerConnection
from streams.replication.server.client import ReplicationClient
from tests.support.tcp_scope import MemoryTransport


class MemoryClient(ReplicationClient):
    """Facts and positions alone: neither greeting nor keep-alive."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()
        connection = ServerConnection("localhost")
        connection.connected(time.monotonic())
        super().__init__(connection, self.transport, "here")
        self.flush()

    def flush(self) -> None:
        self.connection.pop_output()
        self.connection.pop_words()

    def _set_timer(self) -> None: ...

    def encode_lines(self) -> list[bytes]:
        """The lines since the last call."""
        lines = self.transport.sent.splitlines()
        self.transport.taken.clear()
        return lines
