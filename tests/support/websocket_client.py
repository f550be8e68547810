"""A WebSocket client that does as it is told, also what no browser would: flood, ask and never read, send without end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct
import zlib
from typing import Any

from tests.support.waiting import DEADLINE_SECONDS

__all__ = ["WebSocketClient", "handshake", "session_cookie"]

_TEXT, _BINARY, _CLOSE, _PING, _PONG = 1, 2, 8, 9, 10


class Closed(Exception):
    """The server has closed; ``args[0]`` is the code, None when the connection just ended."""


class WebSocketClient:
    """One connection to the live page; frames are masked with zeros, which is a mask as good as any."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(
        cls, port: int, cookie: str = "", origin: str | None = None, receive_bytes: int = 0
    ) -> WebSocketClient:
        """Connected and accepted; raises ``PermissionError`` with the status when it was refused."""
        wire = socket.socket()
        if receive_bytes:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        wire.setblocking(False)
        await asyncio.get_running_loop().sock_connect(wire, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=wire, limit=1024 if receive_bytes else 64 * 1024)
        writer.write(handshake(port, cookie, origin or ""))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_SECONDS)
        status = int(head.split(b" ", 2)[1])
        if status != 101:
            writer.close()
            raise PermissionError(status)
        return cls(reader, writer)

    def say(self, message: Any) -> None:
        """Send JSON."""
        self.frame(json.dumps(message).encode())

    def frame(self, data: bytes, kind: int = _TEXT, announced: int | None = None) -> None:
        """Send a frame; ``announced``: the length that its head tells."""
        length = len(data) if announced is None else announced
        head = bytes([0x80 | kind])
        if length < 126:
            head += bytes([0x80 | length])
        else:
            head += (
                (bytes([0xFE]) + struct.pack(">H", length))
                if length < 65_536
                else bytes([0xFF]) + struct.pack(">Q", length)
            )
        self.writer.write(head + bytes(4) + data)

    async def read(self, seconds: float = 60.0) -> Any:
        """The next JSON; answers pings meanwhile. Raises `Closed`."""
        return json.loads(zlib.decompress(await asyncio.wait_for(self._answer(), seconds)))

    async def number(self, seconds: float = 60.0) -> int:
        """The number of the next page, which is not read any further: many clients are one process here."""
        answer = await asyncio.wait_for(self._answer(), seconds)
        found = re.match(rb'{"number": ?(\d+)', zlib.decompressobj().decompress(answer, 40))
        assert found
        return int(found[1])

    async def closed(self, seconds: float = 60.0) -> int | None:
        """The code that the server closes with; what it says before is passed over."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._answer()
        except Closed as found:
            return found.args[0]

    async def _answer(self) -> bytes:
        while True:
            kind, data = await self._frame()
            if kind == _CLOSE:
                raise Closed(struct.unpack(">H", data[:2])[0] if len(data) >= 2 else None)
            if kind == _PING:
                self.frame(data, _PONG)
            elif kind == _BINARY:
                return data

    async def _frame(self) -> tuple[int, bytes]:
        try:
            first, second = await self.reader.readexactly(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack(">H", await self.reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack(">Q", await self.reader.readexactly(8))
            return first & 0x0F, await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Closed(None) from error

    def close(self) -> None:
        """Just go."""
        self.writer.transport.abort()


def handshake(port: int, cookie: str = "", origin: str = "") -> bytes:
    """The request that opens the live page's WebSocket."""
    key = "AAAAAAAAAAAAAAAAAAAAAA=="
    origin = origin or f"http://127.0.0.1:{port}"
    lines = ["GET /ws/live/ HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade",
             f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", f"Origin: {origin}"]  # fmt: skip
    lines += [f"Cookie: {cookie}"] if cookie else []
    return "\r\n".join([*lines, "", ""]).encode()


def session_cookie(user: Any) -> str:
    """The cookie of somebody who is logged in."""
    from django.conf import settings
    from django.test import Client

    os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    client = Client()
    client.force_login(user)
    return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"
