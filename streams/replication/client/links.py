"""A follower's connections to a server, over TCP. Connections over Redis are in ``redis.subscriber``.

A `Connector` opens a `Link`, and after the end of this link another one. A link receives and sends commands. The
follower decides when to connect again, and interprets the commands. Assumes a single event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from streams.replication.protocol.commands import Command
from streams.replication.protocol.connection import ClientConnection, CloseReason, Limits
from streams.replication.transport.addresses import Address
from streams.replication.transport.tls import explain
from streams.runtime.logs import get_logger

log = get_logger(__name__)

CONNECT_TIMEOUT_SECONDS = 10.0
CLOSE_TIMEOUT_SECONDS = 1.0
READ_BYTES = 256 * 1024
#: Bytes that a server may leave unread before the connection is aborted.
SEND_LIMIT_BYTES = 1024 * 1024


@dataclass(slots=True)
class Counters:
    """The numbers of bytes and lines that were received and sent over one link."""

    bytes_in: int = 0
    bytes_out: int = 0
    lines_in: int = 0
    lines_out: int = 0


class Link(Protocol):
    """One connection to a server."""

    @property
    def counters(self) -> Counters: ...

    async def receive(self) -> Sequence[Command]:
        """Returns the next commands, in order. An empty sequence means that the link has ended.

        Raises ``OSError`` if the link was lost.
        """

    def send(self, command: Command) -> None:
        """Sends a command to the server. Raises `UnsendableCommand`. Does nothing if the link has ended."""

    async def close(self, reason: CloseReason) -> None:
        """Closes the link and releases its resources. If the link is closed several times, the first reason counts."""


class Connector(Protocol):
    """An object that opens links to one server. ``str(connector)`` is the server's address, for log and error messages."""

    def can_reset(self, stream: str) -> bool:
        """Returns false if the connector knows that the stream never starts again at a lower token.

        If the result is true, a POSITION below the known position may mean that the stream started again.
        """

    async def connect(self) -> Link:
        """Opens a link, sends the greeting and REPLICATE over it, and returns the link. Raises ``OSError``."""


@dataclass(frozen=True)
class TcpConnector:
    """A connector to a server's replication port, in plain text or with TLS.

    ``greeting`` returns the commands to send on every new connection after NAME and PING, and before REPLICATE.
    """

    address: Address
    name: str
    server_name: str | None = None
    limits: Limits = field(default_factory=Limits)
    tls: ssl.SSLContext | None = None
    greeting: Callable[[], Iterable[Command]] = tuple
    streams: Collection[str] = ()
    """The only streams that are wanted; empty: all. A server of Synapse sends all streams nevertheless."""

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
        # The difference of the two clocks is the offset from which PING computes the Unix time.
        connection = ClientConnection(
            self.name, self.server_name, self.limits, time.time() - now, self.greeting, streams=self.streams
        )
        connection.connected(now)
        return TcpLink(connection, reader, writer, str(self))


@contextlib.contextmanager
def _tls_in_words() -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        raise ConnectionError(explain(error)) from error


class TcpLink:
    """A link to a replication port.

    It moves bytes between the socket and the object of ``protocol.connection``, and calls this object at its deadlines.
    """

    def __init__(
        self, connection: ClientConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str
    ) -> None:
        self.connection = connection
        self._reader = reader
        self._writer = writer
        self._where = where
        self._reading = self._is_paused = False
        self._flush()
        self._keeper = asyncio.get_running_loop().create_task(self._keep_alive())

    @property
    def counters(self) -> Counters:
        c = self.connection
        return Counters(c.bytes_in, c.bytes_out, c.lines_in, c.lines_out)

    async def receive(self) -> Sequence[Command]:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
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

    def pause(self) -> None:
        """Takes nothing from the network until the next ``receive``. Then lines that came one by one are read together."""
        self._is_paused = True
        self._transport.pause_reading()

    @property
    def _transport(self) -> asyncio.ReadTransport:
        return cast("asyncio.ReadTransport", self._writer.transport)

    def send(self, command: Command) -> None:
        if self.connection.is_open:
            self.connection.send(command, time.monotonic())
            self._flush()
            if self._writer.transport.get_write_buffer_size() > SEND_LIMIT_BYTES:
                log.warning("follower.server_does_not_read", server=self._where)
                self._writer.transport.abort()  # the next greeting sends all lasting state again

    async def close(self, reason: CloseReason) -> None:
        self._keeper.cancel()
        self.connection.lost(reason)
        log.info("follower.connection_ended", server=self._where, reason=str(self.connection.close_reason))
        self._writer.close()
        with contextlib.suppress(OSError):  # a time-out, too: errors do not matter on a connection that ends anyway
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._writer.wait_closed()
        self._writer.transport.abort()

    def _flush(self) -> None:
        if output := self.connection.pop_output():
            self._writer.write(output)

    async def _keep_alive(self) -> None:
        connection = self.connection
        while connection.is_open:
            await asyncio.sleep(max(connection.deadline - time.monotonic(), 0.001))
            if connection.is_open:
                connection.tick(time.monotonic(), reading=self._reading)
            self._flush()
        self._writer.close()
