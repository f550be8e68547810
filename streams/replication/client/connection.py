"""How a follower reaches a server: it connects, commands come out, commands may be said. TCP here, Redis in ``redis_link``.

A `Connector` makes one `Link` after another; a link is good until it ends, and is never used again. The follower decides
when to come back and what the commands mean. Assumes a single event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streams.replication.protocol.commands import Command
from streams.replication.protocol.connection import ClientConnection, CloseReason, Limits
from streams.replication.transport.addresses import Address
from streams.replication.transport.tls import explain
from streams.runtime.logs import get_logger

__all__ = ["CONNECT_TIMEOUT_SECONDS", "Connector", "Counters", "Link", "TcpConnector", "TcpLink"]

log = get_logger(__name__)

CONNECT_TIMEOUT_SECONDS = 10.0
CLOSE_TIMEOUT_SECONDS = 1.0
READ_BYTES = 256 * 1024
#: A server that leaves so much of what we say unread is given up.
SEND_LIMIT_BYTES = 1024 * 1024


@dataclass(slots=True)
class Counters:
    """What went over one link."""

    bytes_in: int = 0
    bytes_out: int = 0
    lines_in: int = 0
    lines_out: int = 0


class Link(Protocol):
    """One connection to a server."""

    @property
    def counters(self) -> Counters: ...

    async def receive(self) -> Sequence[Command]:
        """The next commands, in order; none: the link has ended. Raises ``OSError`` when it was lost."""

    def send(self, command: Command) -> None:
        """Say something to the server; raises `UnsendableCommand`. A link that has ended takes it without a word."""

    async def close(self, reason: CloseReason) -> None:
        """End it and give everything back; the first reason stands."""


class Connector(Protocol):
    """Knows where a server is and how to speak to it; `str` tells people where."""

    def can_reset(self, stream: str) -> bool:
        """Whether a POSITION below what is known means that the stream was started anew, for all we can tell here."""

    async def connect(self) -> Link:
        """A new link, on which we have said who we are and asked for positions. Raises ``OSError``."""


@dataclass(frozen=True)
class TcpConnector:
    """A server's replication port, plain or with TLS.

    ``greeting`` gives what is to be said on every new connection between NAME, PING and REPLICATE.
    """

    address: Address
    name: str
    server_name: str | None = None
    limits: Limits = field(default_factory=Limits)
    tls: ssl.SSLContext | None = None
    greeting: Callable[[], Iterable[Command]] = tuple

    def __str__(self) -> str:
        return str(self.address)

    def can_reset(self, stream: str) -> bool:
        return True

    async def connect(self) -> TcpLink:
        with _tls_in_words():
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self.address.host, self.address.port, limit=READ_BYTES, ssl=self.tls
                )
        now = time.monotonic()
        connection = ClientConnection(self.name, self.server_name, self.limits, time.time() - now, self.greeting)
        connection.connected(now)
        return TcpLink(connection, reader, writer, str(self))


@contextlib.contextmanager
def _tls_in_words() -> Iterator[None]:
    """What OpenSSL says is for those who know it."""
    try:
        yield
    except ssl.SSLError as error:
        raise ConnectionError(explain(error)) from error


class TcpLink:
    """A connection to a replication port: bytes between the socket and the protocol object, and its deadlines."""

    def __init__(
        self, connection: ClientConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str
    ) -> None:
        self.connection = connection
        self._reader = reader
        self._writer = writer
        self._where = where
        self._reading = False
        self._flush()
        self._keeper = asyncio.get_running_loop().create_task(self._keep_alive())

    @property
    def counters(self) -> Counters:
        c = self.connection
        return Counters(c.bytes_in, c.bytes_out, c.lines_in, c.lines_out)

    async def receive(self) -> Sequence[Command]:
        while self.connection.is_open:
            self._reading = True
            with _tls_in_words():
                data = await self._reader.read(READ_BYTES)
            self._reading = False
            if not data:
                break
            commands = self.connection.receive(data, time.monotonic())
            self._flush()
            if commands:
                return commands
        return ()

    def send(self, command: Command) -> None:
        if self.connection.is_open:
            self.connection.send(command, time.monotonic())
            self._flush()
            if self._writer.transport.get_write_buffer_size() > SEND_LIMIT_BYTES:
                log.warning("follower.server_does_not_read", server=self._where)
                self._writer.transport.abort()  # the next connection is told everything that lasts

    async def close(self, reason: CloseReason) -> None:
        self._keeper.cancel()
        self.connection.lost(reason)
        log.info("follower.connection_ended", server=self._where, reason=str(self.connection.close_reason))
        self._writer.close()
        with contextlib.suppress(OSError):  # a time-out, too: it is of no interest how a dead connection dies
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._writer.wait_closed()
        self._writer.transport.abort()

    def _flush(self) -> None:
        if output := self.connection.take_output():
            self._writer.write(output)

    async def _keep_alive(self) -> None:
        connection = self.connection
        while connection.is_open:
            await asyncio.sleep(max(connection.deadline - time.monotonic(), 0.001))
            if connection.is_open:
                connection.tick(time.monotonic(), reading=self._reading)
            self._flush()
        self._writer.close()
