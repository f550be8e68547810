"""Limits of HTTP and WebSocket connections under daphne, which has none: how many, how long, and what may wait for a client.

A connection counts from its first byte to its last, also after it became a WebSocket. Assumes the reactor's thread.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import daphne.server  # noqa: F401 - first: it installs the reactor, and what follows would install another
from daphne.http_protocol import WebRequest
from daphne.ws_protocol import WebSocketProtocol
from twisted.internet.protocol import Protocol, connectionDone
from twisted.protocols.policies import ProtocolWrapper

from streams.logs import get_logger
from streams.replication.websocket_output import PreparedTexts, SharedOutput

__all__ = ["HttpLimits"]

log = get_logger(__name__)
CONNECTION_LIMIT, BODY_LIMIT = "HTTP connection limit", "HTTP body too long"
TOO_SLOW = "WebSocket client too slow"
#: What a WebSocket's client says at once; whoever says more is closed with code 1009.
WEBSOCKET_MESSAGE_BYTES = 64 * 1024
#: A text from this length on is shared by those that it is sent to.
_SHARED_FROM = 1_024
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n"
_TOO_LONG = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HttpLimits:
    """Counts connections and refuses what is too much; ``refused`` says how often, by reason."""

    def __init__(self, connections: int, body_bytes: int, websocket_buffer_bytes: int = 4 * 1024 * 1024) -> None:
        self.refused: Counter[str] = Counter()
        self.open = 0
        self.body_bytes = body_bytes
        self.websocket_buffer_bytes = websocket_buffer_bytes
        self._connections = connections
        self._is_full = False

    def apply(self, factory: Any) -> None:
        """Put these limits on daphne's factory."""
        build = factory.buildProtocol
        request_class = type("BoundedRequest", (_BoundedRequest,), {"limits": self})

        def build_within_limits(address: Any) -> Any:
            if self._refuses():
                return _Refusal()
            protocol = build(address)
            protocol.requestFactory = request_class
            return _Counted(self, protocol)

        factory.buildProtocol = build_within_limits
        factory.server.ws_factory.protocol = _BoundedWebSocket

    def _refuses(self) -> bool:
        is_full = self.open >= self._connections
        if is_full:
            self.refused[CONNECTION_LIMIT] += 1
        if is_full and not self._is_full:  # one line for the change; the counter tells of the others
            log.warning("listener.http_connections_refused", limit=self._connections)
        self._is_full = is_full
        return is_full


class _NoFactory:
    """What `ProtocolWrapper` tells of its life."""

    def registerProtocol(self, protocol: Any) -> None: ...
    def unregisterProtocol(self, protocol: Any) -> None: ...


class _Counted(ProtocolWrapper):
    """A connection that counts, whatever protocol speaks on it."""

    def __init__(self, limits: HttpLimits, protocol: Any) -> None:
        factory: Any = _NoFactory()
        super().__init__(factory, protocol)
        self._limits = limits
        self._is_cut = False
        self._output: SharedOutput | None = None

    def makeConnection(self, transport: Any) -> None:
        self._limits.open += 1
        super().makeConnection(transport)

    def write(self, data: bytes) -> None:
        if not isinstance(self.wrappedProtocol, WebSocketProtocol):
            super().write(data)  # what an HTTP client is told ends by itself
            return
        if self._output is None:
            self._output = SharedOutput(self.transport)
        if not self._is_cut:
            self._output.write(data)
            self._cut_when_slow(self._output)

    def writeSequence(self, data: Any) -> None:
        self.write(b"".join(data))

    def _cut_when_slow(self, output: SharedOutput) -> None:
        """A WebSocket is told more and more."""
        transport: Any = self.transport
        waiting = output.waiting_bytes + _waiting_bytes(transport)
        if waiting > self._limits.websocket_buffer_bytes:
            self._is_cut = True
            self._limits.refused[TOO_SLOW] += 1
            log.warning("listener.websocket_too_slow", client=_host(transport), waiting_bytes=waiting)
            transport.abortConnection()

    def connectionLost(self, reason: Any = connectionDone) -> None:
        self._limits.open -= 1
        super().connectionLost(reason)


def _waiting_bytes(transport: Any) -> int:
    """Bytes that the kernel has not taken; Twisted keeps them in two places."""
    return len(transport.dataBuffer) - int(transport.offset) + int(transport._tempDataLen)


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

    A text that is sent to many is encoded once.
    """

    texts = PreparedTexts()

    def onConnect(self, request: Any) -> Any:
        self.maxFramePayloadSize = self.maxMessagePayloadSize = WEBSOCKET_MESSAGE_BYTES
        return super().onConnect(request)

    def serverSend(self, content: Any, binary: bool = False) -> None:
        if binary or self.state != self.STATE_OPEN or len(content) < _SHARED_FROM:
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

    def handleContentChunk(self, data: bytes) -> None:
        if self.content.tell() + len(data) > self.limits.body_bytes:
            self.limits.refused[BODY_LIMIT] += 1
            self.transport.write(_TOO_LONG)
            self.channel.loseConnection()
            return
        super().handleContentChunk(data)
