"""A client of the broadcaster without a connection: what is written to it is kept."""

from __future__ import annotations

import time

from streams.replication.protocol.connection import ServerConnection
from streams.replication.server.client import ReplicationClient


class _Kept:
    """A transport that takes everything at once."""

    buffered_bytes = waiting_lines = 0
    kernel_bytes = (0, 0)

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def know(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def drop_waiting(self) -> int:
        return 0


class MemoryClient(ReplicationClient):
    """Facts and positions alone: neither greeting nor keep-alive."""

    def __init__(self) -> None:
        self._kept = _Kept()
        connection = ServerConnection("localhost")
        connection.connected(time.monotonic())
        super().__init__(connection, self._kept, "here")
        self.flush()

    def flush(self) -> None:
        self.connection.take_output()
        self.connection.take_words()

    def _set_timer(self) -> None: ...

    def take_lines(self) -> list[bytes]:
        """The lines since the last call."""
        data, self._kept.data = self._kept.data, b""
        return data.splitlines()
