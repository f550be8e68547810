"""Test doubles for the scope ``tcp``: drive an application without a socket. Shipped, so that others can test theirs.

`TcpCommunicator` runs an ASGI application on a made-up connection; `MemoryTransport` is the way out of it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from asgiref.testing import ApplicationCommunicator

__all__ = ["MemoryTransport", "TcpCommunicator"]


class MemoryTransport:
    """The extension ``tcp.transport``, made of bytes. While ``stuck`` the peer takes nothing by itself."""

    def __init__(self) -> None:
        self.taken = bytearray()
        self.waiting = bytearray()
        self.stuck = False
        self.is_closing = self.is_aborted = self.is_known = False

    @property
    def sent(self) -> bytes:
        """Everything written and not dropped."""
        return bytes(self.taken + self.waiting)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the peer has not taken."""
        return len(self.waiting)

    @property
    def waiting_lines(self) -> int:
        """Lines that the peer has not taken."""
        return self.waiting.count(b"\n")

    @property
    def kernel_bytes(self) -> tuple[int, int]:
        """There is no system in between."""
        return 0, 0

    def know(self) -> None:
        """The application knows its client."""
        self.is_known = True

    def write(self, data: bytes) -> None:
        """Bytes for the peer."""
        if not self.is_closing:
            self.waiting += data
            if not self.stuck:
                self.take(len(self.waiting))

    def take(self, size: int) -> None:
        """The peer takes some bytes."""
        self.taken += self.waiting[:size]
        del self.waiting[:size]

    def drop_waiting(self) -> int:
        """Forget what was not taken."""
        dropped = len(self.waiting)
        self.waiting.clear()
        return dropped

    def close(self) -> None:
        """No more writes."""
        self.is_closing = True

    def abort(self) -> None:
        """Gone."""
        self.is_closing = self.is_aborted = True


class TcpCommunicator(ApplicationCommunicator):
    """A client of an application that serves the scope ``tcp``."""

    def __init__(self, application: Any, client: tuple[str, int] = ("127.0.0.1", 50_000)) -> None:
        self.transport = MemoryTransport()
        scope = {
            "type": "tcp",
            "asgi": {"version": "3.0"},
            "client": list(client),
            "server": ["127.0.0.1", 9092],
            "extensions": {"tcp.transport": self.transport},
        }
        super().__init__(application, scope)

    async def connect(self, timeout: float = 1.0) -> None:  # noqa: ASYNC109 - as asgiref's own methods have it
        """Connect, and see to it that the application accepts."""
        await self.send_input({"type": "tcp.connect"})
        message = await self.receive_output(timeout)
        if message["type"] != "tcp.accept":
            raise AssertionError(f"expected tcp.accept, got {message!r}")

    async def send(self, data: bytes) -> None:
        """Bytes from the client."""
        await self.send_input({"type": "tcp.receive", "bytes": data})

    async def receive_until(self, end: bytes, timeout: float = 1.0) -> bytes:  # noqa: ASYNC109
        """Everything written so far, once it holds ``end``; fails when that does not come in time."""
        async with asyncio.timeout(timeout):
            while end not in self.transport.sent:
                await self.pump()
                await asyncio.sleep(0.001)
        return self.transport.sent

    async def pump(self) -> None:
        """Take messages that the application sent the ASGI way."""
        while not self.output_queue.empty():
            message = await self.output_queue.get()
            if message["type"] == "tcp.send":
                self.transport.write(message["bytes"])
            elif message["type"] == "tcp.close":
                self.transport.close()

    async def disconnect(self) -> None:
        """The client goes; wait for the application to end."""
        await self.send_input({"type": "tcp.disconnect", "reason": ""})
        await self.wait()
