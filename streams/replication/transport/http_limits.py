"""Limits of HTTP and WebSocket connections under daphne, which has none: how many, how long, and what is kept for a client.

A connection counts from its first byte to its last, also after it became a WebSocket. One that waits for its client gives way
when there are too many: to say nothing, to say half of a request, or not to take an answer is free for a client and must not
keep others out. Requests that a client sends ahead are looked at when the answer before them was taken. Assumes the
reactor's thread.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import daphne.server  # noqa: F401 - first: it installs the reactor, and what follows would install another
from daphne.http_protocol import WebRequest
from daphne.ws_protocol import WebSocketProtocol
from twisted.internet import reactor
from twisted.internet.protocol import Protocol, connectionDone
from twisted.protocols.policies import ProtocolWrapper
from twisted.web import http

from streams.replication.protocol.access import Network, address_key, is_among
from streams.replication.transport.kernel_buffers import kernel_bytes
from streams.replication.transport.websocket_output import PreparedTexts, SharedOutput
from streams.runtime.logs import get_logger

__all__ = ["HttpBounds", "HttpLimits"]

log = get_logger(__name__)
CONNECTION_LIMIT, ADDRESS_LIMIT, GAVE_WAY = "HTTP connection limit", "HTTP address limit", "HTTP connection gave way"
BODY_LIMIT, REQUEST_TIMEOUT, NOT_TAKEN = "HTTP body too long", "HTTP request too slow", "HTTP client too slow"
MEMORY_LIMIT = "HTTP memory limit"
TOO_SLOW, TOO_FAST = "WebSocket client too slow", "WebSocket client too fast"
#: What a WebSocket's client says at once; whoever says more is closed with code 1009.
WEBSOCKET_MESSAGE_BYTES = 64 * 1024
#: Frames of a client within a second, PINGs too: each costs the loop as much as a short line. A viewer says one now and then.
WEBSOCKET_FRAMES_A_SECOND = 100
#: A message from this length on is shared by those that it is sent to.
_SHARED_FROM = 1_024
#: A client that takes its answer slower than this is given up. No modem is that slow.
SLOWEST_BYTES_PER_SECOND = 1_024
#: What the system may keep for a client; what it lets grow by itself is some megabytes for each.
KERNEL_SEND_BYTES = 128 * 1024
#: So much is read from a client at a time: then others have their turn.
READ_BYTES = 16 * 1024
#: A piece of a body in pieces costs as much as so many bytes; a body of single bytes ends early.
_PIECE_BYTES = 64
#: A body in chunks that has more of them than this, of fewer bytes on average than that, is refused: each chunk costs the loop as
#: much as a kilobyte, and a client that writes text to the network makes longer ones.
_FREE_CHUNKS, _LEAST_CHUNK_BYTES = 64, 32
#: So many give way at once, of a hundred that may be there: to look for one goes through all of them.
_GIVE_WAY_PERCENT = 5
LOOK_SECONDS = 1.0
_LOG_SECONDS = 10.0
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n"
_TOO_LONG = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """The limits."""

    connections: int = 1_000
    of_address: int = 500
    """Connections from one address (IPv6: one /64; this machine counts as one); 0: no limit."""
    body_bytes: int = 4 * 1024 * 1024
    buffer_bytes: int = 256 * 1024 * 1024
    """Bodies that came and answers that wait, of all clients together."""
    websocket_buffer_bytes: int = 4 * 1024 * 1024
    head_seconds: float = 10.0
    """From the first byte of a request's head to its last."""
    body_seconds: float = 60.0
    """From the end of the head to the end of the body."""
    stall_seconds: float = 30.0
    """Over this time a client has to take ``SLOWEST_BYTES_PER_SECOND`` of what waits for it."""
    proxies: Sequence[Network] = ()
    """Each of them speaks for many clients, so it is not counted as one address."""


class _Phase(enum.Enum):
    """What an HTTP connection waits for."""

    IDLE = "a request"
    HEAD = "the rest of a head"
    BODY = "the rest of a body"
    WORK = "us"
    ANSWER = "the client to take its answer"


class HttpLimits:
    """Counts connections and refuses what is too much; ``refused`` says how often, by reason."""

    def __init__(self, bounds: HttpBounds) -> None:
        self.refused: Counter[str] = Counter()
        self.bounds = bounds
        self._connections: dict[_Counted, None] = {}
        self._of_address: dict[str, dict[_Counted, None]] = {}
        self._logged: dict[str, float] = {}
        self._written = 0

    @property
    def open(self) -> int:
        """Connections that are there."""
        return len(self._connections)

    def apply(self, factory: Any) -> None:
        """Put these limits on daphne's factory."""
        build = factory.buildProtocol
        request_class = type("BoundedRequest", (_BoundedRequest,), {"limits": self})
        factory.protocol = lambda: http._GenericHTTPChannelProtocol(_PacedChannel())

        def build_within_limits(address: Any) -> Any:
            host = str(getattr(address, "host", ""))
            if not self._has_room(host):
                return _Refusal()
            protocol = build(address)
            protocol.requestFactory = request_class
            return _Counted(self, protocol, self._key(host))

        factory.buildProtocol = build_within_limits
        factory.server.ws_factory.protocol = _BoundedWebSocket
        self._look_again()

    def count(self, reason: str, client: str = "") -> None:
        """Count it; one line in the log for a flood of them."""
        self.refused[reason] += 1
        now = time.monotonic()
        if now >= self._logged.get(reason, 0.0) + _LOG_SECONDS:
            self._logged[reason] = now
            log.warning("listener.http_refused", reason=reason, client=client, open=self.open)

    def enter(self, connection: _Counted) -> None:
        """A connection was made."""
        self._connections[connection] = None
        if connection.address:
            self._of_address.setdefault(connection.address, {})[connection] = None

    def leave(self, connection: _Counted) -> None:
        """It is gone, or gives way."""
        self._connections.pop(connection, None)
        if (others := self._of_address.get(connection.address)) is not None:
            others.pop(connection, None)
            if not others:
                del self._of_address[connection.address]

    def wrote(self, size: int) -> None:
        """So much was handed over for clients; memory is looked at when that may have filled it, and each second."""
        self._written += size
        if self._written > self.bounds.buffer_bytes // 8:
            self._written = 0
            _later(0, self._free_memory)

    def look(self) -> None:
        """End what takes too long; called each second."""
        now = time.monotonic()
        for connection in list(self._connections):
            connection.look(now)
        self._free_memory()

    def _look_again(self) -> None:
        self.look()
        _later(LOOK_SECONDS, self._look_again)

    def _key(self, host: str) -> str:
        return "" if not self.bounds.of_address or is_among(host, self.bounds.proxies) else address_key(host)

    def _has_room(self, host: str) -> bool:
        """Whether one more may come; others give way for it, if they can."""
        key = self._key(host)
        of_address = self._of_address.get(key, {}) if key else {}
        if key and len(of_address) >= self.bounds.of_address and not self._give_way(of_address, self.bounds.of_address):
            self.count(ADDRESS_LIMIT, host)
            return False
        if self.open >= self.bounds.connections and not self._give_way(self._connections, self.bounds.connections):
            self.count(CONNECTION_LIMIT, host)
            return False
        return True

    def _give_way(self, connections: Iterable[_Counted], limit: int) -> bool:
        """End those that have waited for their client longest, first of the address that has most; whether there were any."""
        waiting = [connection for connection in connections if connection.waits_for_client]
        number_of = Counter(connection.address for connection in waiting)
        waiting.sort(key=lambda connection: (-number_of[connection.address], connection.since))
        chosen = waiting[: max(1, limit * _GIVE_WAY_PERCENT // 100)]
        for connection in chosen:
            connection.give_way()
        return bool(chosen)

    def _free_memory(self) -> None:
        """While more is kept than may be, those that have not taken it for longest are cut."""
        self._written = 0
        held = {connection: size for connection in self._connections if (size := connection.held_bytes)}
        too_much = sum(held.values()) - self.bounds.buffer_bytes
        if too_much <= 0:
            return
        for connection in sorted(held, key=lambda connection: (not connection.waits_for_client, connection.since)):
            connection.cut(MEMORY_LIMIT)
            too_much -= held[connection]
            if too_much <= 0:
                return


def _later(seconds: float, call: Callable[[], None]) -> None:
    clock: Any = reactor
    clock.callLater(seconds, call)


class _NoFactory:
    """What `ProtocolWrapper` tells of its life."""

    def registerProtocol(self, protocol: Any) -> None: ...
    def unregisterProtocol(self, protocol: Any) -> None: ...


class _Counted(ProtocolWrapper):
    """A connection that counts, whatever protocol speaks on it."""

    def __init__(self, limits: HttpLimits, protocol: Any, address: str = "") -> None:
        factory: Any = _NoFactory()
        super().__init__(factory, protocol)
        self.address = address
        self.since = self._progress_at = time.monotonic()
        self._phase = _Phase.IDLE
        self._limits = limits
        self._is_cut = False
        self._is_ending = False
        self._body_bytes = self._written = self._taken = 0
        self._output: SharedOutput | None = None

    def makeConnection(self, transport: Any) -> None:
        self._limits.enter(self)
        if (made := getattr(transport, "socket", None)) is not None:
            transport.bufferSize = READ_BYTES
            with contextlib.suppress(OSError):  # gone already
                made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_SEND_BYTES)
        super().makeConnection(transport)

    def enters(self, phase: _Phase) -> None:
        """Called by the channel."""
        self._phase, self.since = phase, time.monotonic()
        if phase in (_Phase.IDLE, _Phase.ANSWER):
            self._body_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Nothing of a request has come."""
        return self._phase is _Phase.IDLE

    @property
    def waits_for_client(self) -> bool:
        """Whether the next step is the client's."""
        return self._phase is not _Phase.WORK and not self._is_websocket

    @property
    def held_bytes(self) -> int:
        """What is kept of its body, and of answers that it has not taken."""
        return self._body_bytes + (0 if self._is_websocket else _waiting_bytes(self.transport))

    @property
    def _is_websocket(self) -> bool:
        return isinstance(self.wrappedProtocol, WebSocketProtocol)

    def holds(self, more: int) -> None:
        """So much of a body came."""
        self._body_bytes += more
        self._limits.wrote(more)

    def write(self, data: bytes) -> None:
        if not self._is_websocket:
            super().write(data)
            self._written += len(data)
            self._limits.wrote(len(data))
            return
        if self._output is None:
            self._output = SharedOutput(self.transport)
        if not self._is_cut:
            self._output.write(data)
            self._cut_when_slow(self._output)

    def writeSequence(self, data: Any) -> None:
        self.write(b"".join(data))

    def look(self, now: float) -> None:
        """End the connection when its client takes too long; called each second."""
        if self._is_websocket:
            return
        bounds, waiting = self._limits.bounds, _waiting_bytes(self.transport)
        allowed = {_Phase.HEAD: bounds.head_seconds, _Phase.BODY: bounds.body_seconds}.get(self._phase)
        if self._is_ending:
            self.cut()
        elif allowed is not None and now > self.since + allowed:
            self._time_out(waiting)
        elif not waiting or now > self._progress_at + bounds.stall_seconds:
            taken = self._written - waiting - _kernel_bytes(self.transport)
            if waiting and taken < self._taken + bounds.stall_seconds * SLOWEST_BYTES_PER_SECOND:
                self.cut(NOT_TAKEN)
            self._progress_at, self._taken = now, taken

    def _time_out(self, waiting: int) -> None:
        self._limits.count(REQUEST_TIMEOUT, _host(self.transport))
        self._is_ending = True
        if not waiting:
            super().write(_TIMED_OUT)
        self.loseConnection()

    def give_way(self) -> None:
        """Its place is free now; where nothing waits for it, the client is told."""
        self._limits.count(GAVE_WAY, _host(self.transport))
        if self._phase is _Phase.ANSWER or _waiting_bytes(self.transport):
            self.cut()
            return
        self._limits.leave(self)
        super().write(_TOO_MANY)
        self.loseConnection()

    def cut(self, reason: str = "") -> None:
        """End it at once; its place is free now."""
        transport: Any = self.transport
        if reason and not self._is_cut:
            self._limits.count(reason, _host(transport))
        self._is_cut = True
        self._limits.leave(self)
        transport.abortConnection()

    def _cut_when_slow(self, output: SharedOutput) -> None:
        """A WebSocket is told more and more."""
        transport: Any = self.transport
        waiting = output.waiting_bytes + _waiting_bytes(transport)
        if waiting > self._limits.bounds.websocket_buffer_bytes:
            self._is_cut = True
            self._limits.refused[TOO_SLOW] += 1
            log.warning("listener.websocket_too_slow", client=_host(transport), waiting_bytes=waiting)
            transport.abortConnection()

    def connectionLost(self, reason: Any = connectionDone) -> None:
        self._limits.leave(self)
        super().connectionLost(reason)
        _forget_output(self.transport)


class _PacedChannel(http.HTTPChannel):
    """Twisted's, which would answer all that a client has sent ahead, whether it takes the answers or not.

    A client sends 1,000 requests of 60 bytes and reads nothing. Twisted stops reading, but has read them all: a thousand
    answers wait. Here the second request is looked at when the first answer has gone.
    """

    transport: Any
    _answered: Any = None

    def dataReceived(self, data: bytes) -> None:
        if self.transport.is_idle:
            self.transport.enters(_Phase.HEAD)
        super().dataReceived(data)

    def allHeadersReceived(self) -> None:
        self.transport.enters(_Phase.BODY)
        super().allHeadersReceived()

    def allContentReceived(self) -> None:
        self.transport.enters(_Phase.WORK)
        super().allContentReceived()

    def requestDone(self, request: Any) -> None:
        if self._waitingForTransport and self.persistent:
            self.transport.enters(_Phase.ANSWER)
            self._answered = request
        else:
            self._go_on(request)

    def resumeProducing(self) -> None:
        super().resumeProducing()
        answered, self._answered = self._answered, None
        if answered is not None:
            self._go_on(answered)

    def _go_on(self, request: Any) -> None:
        self.transport.enters(_Phase.IDLE if self.persistent else _Phase.ANSWER)
        super().requestDone(request)


def _waiting_bytes(transport: Any) -> int:
    """Bytes that the kernel has not taken; Twisted keeps them in two places."""
    return len(transport.dataBuffer) - int(transport.offset) + int(transport._tempDataLen)


def _kernel_bytes(transport: Any) -> int:
    """Bytes that the kernel has taken and the client has not.

    The kernel asks for more when a third of what it keeps is free. Without this a client that takes 2 kB a second would seem to
    take nothing for half a minute, and would be cut.
    """
    made = getattr(transport, "socket", None)
    return kernel_bytes(made.fileno())[0] if made is not None else 0


def _forget_output(transport: Any) -> None:
    """What nobody takes any more would be there until the collector comes: transport and protocol hold each other."""
    transport.dataBuffer, transport.offset = b"", 0
    transport._tempDataBuffer, transport._tempDataLen = [], 0


def _host(transport: Any) -> str:
    return str(getattr(transport.getPeer(), "host", ""))


class _Refusal(Protocol):
    """One connection too many."""

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.write(_TOO_MANY)
        transport.loseConnection()


class _BoundedWebSocket(WebSocketProtocol):
    """daphne's WebSocket, closed before more of a message was read than anybody here has a use for.

    A message that is sent to many is framed once.
    """

    texts = PreparedTexts()
    _second, _frames = 0.0, 0

    def _dataReceived(self, data: bytes) -> None:
        """What comes before the handshake is done waits for it; a client that goes on and on then fills the memory."""
        if self.state == self.STATE_CONNECTING and len(self.data) + len(data) > WEBSOCKET_MESSAGE_BYTES:
            self._cut()
        else:
            super()._dataReceived(data)

    def onFrameBegin(self) -> None:
        """A client that floods is cut at once: one that is only told to close may go on for as long as that takes."""
        now = time.monotonic()
        if now >= self._second + 1.0:
            self._second, self._frames = now, 0
        self._frames += 1
        if self._frames > WEBSOCKET_FRAMES_A_SECOND:
            self._cut()
        else:
            super().onFrameBegin()

    def _cut(self) -> None:
        self.data = b""
        self.wasNotCleanReason = TOO_FAST
        self.transport.cut(TOO_FAST)
        self.dropConnection(abort=True)

    def onConnect(self, request: Any) -> Any:
        self.maxFramePayloadSize = self.maxMessagePayloadSize = WEBSOCKET_MESSAGE_BYTES
        return super().onConnect(request)

    def serverSend(self, content: Any, binary: bool = False) -> None:
        if self.state != self.STATE_OPEN or len(content) < _SHARED_FROM:
            super().serverSend(content, binary)
        else:
            self.sendPreparedMessage(self.texts.of(content, self.factory.prepareMessage))

    def sendMessage(self, *arguments: Any, **options: Any) -> None:
        """What we say ourselves may be longer; the library has one limit for both."""
        self.maxFramePayloadSize = self.maxMessagePayloadSize = 0
        try:
            super().sendMessage(*arguments, **options)
        finally:
            self.maxFramePayloadSize = self.maxMessagePayloadSize = WEBSOCKET_MESSAGE_BYTES


class _BoundedRequest(WebRequest):
    """daphne's request, refused before more of it was read than anybody here has a use for."""

    limits: HttpLimits
    _is_chunked = _is_refused = False
    _pieces = _bytes = _weight = 0

    def gotLength(self, length: int | None) -> None:
        self._is_chunked = length is None
        super().gotLength(length)

    def handleContentChunk(self, data: bytes) -> None:
        if self._is_refused:
            return  # what has been read is dropped
        self._pieces += 1
        self._bytes += len(data)
        self._weight += max(len(data), _PIECE_BYTES)
        is_crumbs = self._is_chunked and self._pieces > max(_FREE_CHUNKS, self._bytes // _LEAST_CHUNK_BYTES)
        if is_crumbs or self._weight > self.limits.bounds.body_bytes:
            self._refuse()
            return
        self.channel.transport.holds(len(data))
        super().handleContentChunk(data)

    def _refuse(self) -> None:
        self._is_refused = True
        self.limits.count(BODY_LIMIT)
        if self._is_chunked:
            del self.channel._transferDecoder._buffer[
                :
            ]  # thousands of chunks that were read already are not taken apart
        self.transport.write(_TOO_LONG)
        self.channel.loseConnection()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Twisted's takes the query and forms apart as well: seconds for a form of four megabytes, and Django does it again."""
        self.content.seek(0)
        self.args: dict[bytes, list[bytes]] = {}
        self.method, self.uri, self.clientproto = command, path, version
        self.path = path.partition(b"?")[0]
        self.process()
