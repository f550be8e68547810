"""Test doubles for the scope ``tcp``: they run an application without a socket.

`TcpCommunicator` runs an ASGI application on a simulated connection. `MemoryTransport` collects its output.
"""

from __future__ import annotations

import asyncio
from typing import Any

from asgiref.testing import ApplicationCommunicator


class MemoryTransport:
    """A test double of the extension ``tcp.transport``. While ``stuck`` is true, output waits until the test calls `take`."""

    def __init__(self) -> None:
        self.taken = bytearray()
        self.waiting = bytearray()
        self.stuck = False
        self.is_closing = self.is_aborted = self.is_known = False

    @property
    def sent(self) -> bytes:
        """Returns all bytes that were written and not dropped."""
        return bytes(self.taken + self.waiting)

    @property
    def buffered_bytes(self) -> int:
        """Returns the number of bytes that the client has not taken."""
        return len(self.waiting)

    @property
    def unsent_bytes(self) -> int:
        """Returns ``buffered_bytes``."""
        return self.buffered_bytes

    @property
    def waiting_lines(self) -> int:
        """Returns the number of line ends that the client has not taken."""
        return self.waiting.count(b"\n")

    @property
    def kernel_bytes(self) -> tuple[int, int]:
        """Returns two zeros, because the simulated connection has no kernel buffer."""
        return 0, 0

    def know(self) -> None:
        """Sets ``is_known``, by which a test can check that the application called this method."""
        self.is_known = True

    def write(self, data: bytes | memoryview, lines: int | None = None) -> None:
        """Sends bytes to the simulated client. Does nothing if the connection is closing."""
        if not self.is_closing:
            self.waiting += data
            if not self.stuck:
                self.take(len(self.waiting))

    def take(self, size: int) -> None:
        """Makes the simulated client take up to ``size`` waiting bytes."""
        self.taken += self.waiting[:size]
        del self.waiting[:size]

    def drop_waiting(self) -> int:
        """Drops the bytes that the client has not taken, and returns the number of dropped bytes."""
        dropped = len(self.waiting)
        self.waiting.clear()
        return dropped

    def close(self) -> None:
        """Ends the connection for further writes."""
        self.is_closing = True

    def abort(self) -> None:
        """Ends the connection, and sets ``is_aborted``."""
        self.is_closing = self.is_aborted = True


class TcpCommunicator(ApplicationCommunicator):
    """A test client of an ASGI application that serves the scope ``tcp``."""

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

    async def connect(self, timeout: float = 60.0) -> None:  # noqa: ASYNC109 - as asgiref's own methods have it
        """Connects the test client. Raises `AssertionError` if the application does not accept the connection."""
        await self.send_input({"type": "tcp.connect"})
        message = await self.receive_output(timeout)
        if message["type"] != "tcp.accept":
            raise AssertionError(f"expected tcp.accept, got {message!r}")

    async def send(self, data: bytes) -> None:
        """Sends bytes from the client to the application."""
        await self.send_input({"type": "tcp.receive", "bytes": data})

    async def receive_until(self, end: bytes, timeout: float = 60.0) -> bytes:  # noqa: ASYNC109
        """Waits until the application's output contains ``end``, and returns all output so far. Raises `TimeoutError`.

        The limit of the wait is ``timeout`` seconds.
        """
        async with asyncio.timeout(timeout):
            while end not in self.transport.sent:
                await self.pump()
                await asyncio.sleep(0.001)
        return self.transport.sent

    async def pump(self) -> None:
        """Executes the ASGI messages (``tcp.send``, ``tcp.close``) that the application has sent so far."""
        while not self.output_queue.empty():
            message = await self.output_queue.get()
            if message["type"] == "tcp.send":
                self.transport.write(message["bytes"])
            elif message["type"] == "tcp.close":
                self.transport.close()

    async def disconnect(self) -> None:
        """Disconnects the client and waits until the application has ended."""
        await self.send_input({"type": "tcp.disconnect", "reason": ""})
        await self.wait()
