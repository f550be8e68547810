"""Limits for HTTP connections, because daphne sets no limits: numbers, times, and memory for clients.

At a limit, connections that wait for their client are closed to make room. A client has no cost if it is silent, sends
half a request, or does not read an answer. So connections of such clients must not keep other clients out. Pipelined
requests are processed one by one, each after the transport has accepted the previous answer. All code of this module runs
in the reactor's thread.
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
from twisted.internet import reactor
from twisted.internet.protocol import Protocol, connectionDone
from twisted.protocols.policies import ProtocolWrapper
from twisted.web import http

from streams.replication.protocol.access import Network, address_key, is_among
from streams.replication.transport.kernel_buffers import kernel_bytes
from streams.runtime.logs import get_logger
from streams.stream_settings import StreamSettings

__all__ = ["HttpBounds", "HttpLimits"]

log = get_logger(__name__)
CONNECTION_LIMIT, ADDRESS_LIMIT, GAVE_WAY = "HTTP connection limit", "HTTP address limit", "HTTP connection gave way"
BODY_LIMIT, REQUEST_TIMEOUT, NOT_TAKEN = "HTTP body too long", "HTTP request too slow", "HTTP client too slow"
MEMORY_LIMIT = "HTTP memory limit"
#: The connection of a client that takes its answer more slowly is aborted. No modem is so slow.
SLOWEST_BYTES_PER_SECOND = 1_024
#: The size of the kernel's send buffer for a client. By default the kernel lets each buffer grow to some megabytes.
KERNEL_SEND_BYTES = 128 * 1024
#: The most bytes that are read from a client before other clients have their turn.
READ_BYTES = 16 * 1024
#: The least bytes that a piece of a body counts against the limit, so that a body of single bytes reaches it early.
_PIECE_BYTES = 64
#: A chunked body is refused if it has more than ``_FREE_CHUNKS`` chunks, of fewer than ``_LEAST_CHUNK_BYTES`` bytes on
#: average. Each chunk costs the loop as much as a kilobyte, and a client that writes text to the network sends longer
#: chunks.
_FREE_CHUNKS, _LEAST_CHUNK_BYTES = 64, 32
#: The most steps in which Python decodes the escapes of a request's cookies: for each value, its length times its
#: backslashes. Django's cookie of messages, with at most 2,048 characters, needs half of these steps.
_COOKIE_STEPS = 4_000_000
#: The percentage of the limit that is closed at once to make room, because finding candidates visits every connection.
_GIVE_WAY_PERCENT = 5
LOOK_SECONDS = 1.0
_LOG_SECONDS = 10.0
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n"
_TOO_LONG = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_DEFAULT = StreamSettings()


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """The limits of HTTP connections of one process."""

    connections: int = _DEFAULT.http_connection_limit
    of_address: int = _DEFAULT.http_address_limit
    """Connections from one address (IPv6: one /64; this machine counts as one); 0: no limit."""
    body_bytes: int = _DEFAULT.http_body_limit_bytes
    buffer_bytes: int = _DEFAULT.http_buffer_limit_bytes
    """Request bodies received and answers not yet taken, of all clients together."""
    head_seconds: float = _DEFAULT.http_head_limit_seconds
    """From the first byte of a request's head to its last."""
    body_seconds: float = _DEFAULT.http_body_limit_seconds
    """From the end of the head to the end of the body."""
    stall_seconds: float = _DEFAULT.send_stall_limit_seconds
    """The time over which a client must take at least ``SLOWEST_BYTES_PER_SECOND`` of its waiting answer, on average."""
    proxies: Sequence[Network] = ()
    """Networks of proxies. A proxy connects for many clients, so the limit per address does not apply to it."""


class _Phase(enum.Enum):
    """The event for which an HTTP connection is waiting."""

    IDLE = "a request"
    HEAD = "the rest of a head"
    BODY = "the rest of a body"
    WORK = "us"
    ANSWER = "the client to take its answer"


class HttpLimits:
    """The object that enforces `HttpBounds` in one process. ``refused`` counts refused and closed connections by reason."""

    def __init__(self, bounds: HttpBounds) -> None:
        self.refused: Counter[str] = Counter()
        self.bounds = bounds
        #: Both dictionaries serve as ordered sets, which find and remove a member in constant time.
        self._connections: dict[_Counted, None] = {}
        self._of_address: dict[str, dict[_Counted, None]] = {}
        self._logged: dict[str, float] = {}
        self._written = 0

    @property
    def open(self) -> int:
        """Returns the number of connections that hold a place."""
        return len(self._connections)

    @property
    def has_unfinished(self) -> bool:
        """Returns true if a connection waits for its first request, for the rest of a request, or for the end of an answer."""
        return any(connection.is_unfinished for connection in self._connections)

    def apply(self, factory: Any) -> None:
        """Installs the limits on daphne's HTTP factory, and starts the check that runs every `LOOK_SECONDS`."""
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
        self._check_again()

    def count(self, reason: str, client: str = "") -> None:
        """Counts a refused or closed connection. Logs at most one line per reason in `_LOG_SECONDS`."""
        self.refused[reason] += 1
        now = time.monotonic()
        if now >= self._logged.get(reason, 0.0) + _LOG_SECONDS:
            self._logged[reason] = now
            log.warning("listener.http_refused", reason=reason, client=client, open=self.open)

    def enter(self, connection: _Counted) -> None:
        """Gives a new connection a place."""
        self._connections[connection] = None
        if connection.address:
            self._of_address.setdefault(connection.address, {})[connection] = None

    def leave(self, connection: _Counted) -> None:
        """Releases a connection's place. Does nothing if the connection has no place."""
        self._connections.pop(connection, None)
        if (others := self._of_address.get(connection.address)) is not None:
            others.pop(connection, None)
            if not others:
                del self._of_address[connection.address]

    def wrote(self, size: int) -> None:
        """Counts ``size`` bytes that were buffered for clients.

        If more than an eighth of ``buffer_bytes`` was buffered since the last check of the memory, checks the memory
        again.
        """
        self._written += size
        if self._written > self.bounds.buffer_bytes // 8:
            self._written = 0
            _later(0, self._free_memory)

    def look(self) -> None:
        """Ends connections that exceed a time limit, and frees memory. Called every `LOOK_SECONDS`."""
        now = time.monotonic()
        for connection in list(self._connections):
            connection.look(now)
        self._free_memory()

    def _check_again(self) -> None:
        self.look()
        _later(LOOK_SECONDS, self._check_again)

    def _key(self, host: str) -> str:
        return "" if not self.bounds.of_address or is_among(host, self.bounds.proxies) else address_key(host)

    def _has_room(self, host: str) -> bool:
        """Returns true if one more connection from ``host`` is allowed. If not, counts a refusal and returns false.

        At a limit, connections that wait for their client are closed to make room.
        """
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
        """Ends some connections that wait for their client. Returns false if no connection waits for its client.

        Ends as many connections as `_GIVE_WAY_PERCENT` of ``limit``, but at least one. Begins with the address that has
        the most such connections, and within an address with the connections that have waited longest.
        """
        # Several connections are ended at once, because this method visits every connection. Otherwise a flood of new
        # connections would repeat this for each of them.
        waiting = [connection for connection in connections if connection.waits_for_client]
        number_of = Counter(connection.address for connection in waiting)
        waiting.sort(key=lambda connection: (-number_of[connection.address], connection.since))
        chosen = waiting[: max(1, limit * _GIVE_WAY_PERCENT // 100)]
        for connection in chosen:
            connection.give_way()
        return bool(chosen)

    def _free_memory(self) -> None:
        """Aborts connections until at most ``buffer_bytes`` bytes are held for all clients together.

        Connections that wait for their client are aborted first. Among these, the connections that have waited longest
        come first.
        """
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
    """A factory for `ProtocolWrapper` that ignores the registration of protocols."""

    def registerProtocol(self, protocol: Any) -> None: ...
    def unregisterProtocol(self, protocol: Any) -> None: ...


class _Counted(ProtocolWrapper):
    """A wrapper of one connection that applies the limits."""

    def __init__(self, limits: HttpLimits, protocol: Any, address: str = "") -> None:
        factory: Any = _NoFactory()
        super().__init__(factory, protocol)
        self.address = address
        self.since = self._progress_at = time.monotonic()
        self._phase = _Phase.IDLE
        self._limits = limits
        self._is_cut = False
        self._is_ending = False
        self._is_new = True
        self._body_bytes = self._written = self._taken = 0

    def makeConnection(self, transport: Any) -> None:
        self._limits.enter(self)
        if (made := getattr(transport, "socket", None)) is not None:
            transport.bufferSize = READ_BYTES
            with contextlib.suppress(OSError):  # the client is already gone
                made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_SEND_BYTES)
        super().makeConnection(transport)

    def enters(self, phase: _Phase) -> None:
        """Records that the connection enters ``phase`` now. Called by the HTTP channel."""
        self._phase, self.since, self._is_new = phase, time.monotonic(), False
        if phase in (_Phase.IDLE, _Phase.ANSWER):
            self._body_bytes = 0  # the request is done, and its body is no longer kept

    @property
    def is_idle(self) -> bool:
        """Returns true if no byte of the next request has arrived."""
        return self._phase is _Phase.IDLE

    @property
    def is_unfinished(self) -> bool:
        """Returns true if the first request has not been answered, or a byte of a further request has arrived."""
        return self._is_new or self._phase is not _Phase.IDLE

    @property
    def waits_for_client(self) -> bool:
        """Returns true if the connection waits for its client to send or to receive bytes."""
        return self._phase is not _Phase.WORK

    @property
    def held_bytes(self) -> int:
        """Returns the number of bytes held for this connection.

        These are the received bytes of a request's body, and bytes of answers that the kernel has not accepted yet.
        """
        return self._body_bytes + _waiting_bytes(self.transport)

    def holds(self, more: int) -> None:
        """Adds ``more`` to the counted bytes of the request's body, which is received piece by piece."""
        self._body_bytes += more
        self._limits.wrote(more)

    def write(self, data: bytes) -> None:
        super().write(data)
        self._written += len(data)
        self._limits.wrote(len(data))

    def writeSequence(self, data: Any) -> None:
        self.write(b"".join(data))

    def look(self, now: float) -> None:
        """Ends the connection if its client exceeds a time limit. Called every `LOOK_SECONDS`."""
        bounds, waiting = self._limits.bounds, _waiting_bytes(self.transport)
        allowed = {_Phase.HEAD: bounds.head_seconds, _Phase.BODY: bounds.body_seconds}.get(self._phase)
        if self._is_ending:  # since the last call the client had time to take the answer 408
            self.cut()
        elif allowed is not None and now > self.since + allowed:
            self._time_out(waiting)
        # While no output waits for the client, the measured time starts again at every call.
        elif not waiting or now > self._progress_at + bounds.stall_seconds:
            # Bytes in the kernel's send buffer are not taken either: see `_kernel_bytes`.
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
        """Ends the connection, and releases its place at once.

        The client receives HTTP status 503. If earlier output still waits for the client, the connection is aborted
        without this answer.
        """
        self._limits.count(GAVE_WAY, _host(self.transport))
        if self._phase is _Phase.ANSWER or _waiting_bytes(self.transport):
            self.cut()
            return
        # The place is free at once, not only in `connectionLost`: the new connection needs it now.
        self._limits.leave(self)
        super().write(_TOO_MANY)
        self.loseConnection()

    def cut(self, reason: str = "") -> None:
        """Aborts the connection, and releases its place at once. If ``reason`` is given, counts the abort under this reason."""
        transport: Any = self.transport
        if reason and not self._is_cut:
            self._limits.count(reason, _host(transport))
        self._is_cut = True
        self._limits.leave(self)
        transport.abortConnection()

    def connectionLost(self, reason: Any = connectionDone) -> None:
        self._limits.leave(self)
        super().connectionLost(reason)
        _forget_output(self.transport)


class _PacedChannel(http.HTTPChannel):
    """A channel that processes a pipelined request only after the transport has accepted the previous answer."""

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
        # A client sends 1,000 requests of 60 bytes and reads nothing. Twisted stops reading from the socket, but has
        # already read the 1,000 requests, and would buffer 1,000 answers. So the second request waits until the transport
        # has accepted the first answer.
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
    """Returns the number of output bytes that the kernel has not accepted. Twisted keeps these bytes in two buffers."""
    return len(transport.dataBuffer) - int(transport.offset) + int(transport._tempDataLen)


def _kernel_bytes(transport: Any) -> int:
    """Returns the number of bytes that the kernel has accepted and the client has not acknowledged.

    The kernel accepts further bytes only when a third of its buffer is free. If the bytes in the buffer counted as
    taken, a client that takes 2 kB a second would seem to take nothing for half a minute. Then its connection would be
    aborted.
    """
    made = getattr(transport, "socket", None)
    return kernel_bytes(made.fileno())[0] if made is not None else 0


def _forget_output(transport: Any) -> None:
    """Empties a lost connection's buffers. Otherwise they would stay in memory until the garbage collector runs."""
    # Transport and protocol reference each other, so reference counting alone does not free them.
    transport.dataBuffer, transport.offset = b"", 0
    transport._tempDataBuffer, transport._tempDataLen = [], 0


def _host(transport: Any) -> str:
    return str(getattr(transport.getPeer(), "host", ""))


class _Refusal(Protocol):
    """A protocol that answers each connection with HTTP status 503 and closes it."""

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.write(_TOO_MANY)
        transport.loseConnection()


class _BoundedRequest(WebRequest):
    """daphne's request with a limit on its body, enforced while the body arrives, and without unsafe headers."""

    limits: HttpLimits
    _is_chunked = _is_refused = False
    _pieces = _bytes = _weight = 0

    def gotLength(self, length: int | None) -> None:
        self._is_chunked = length is None
        super().gotLength(length)

    def handleContentChunk(self, data: bytes) -> None:
        if self._is_refused:
            return  # bytes that were already read are dropped
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
            ]  # saves the parsing of thousands of chunks that were already read
        self.transport.write(_TOO_LONG)
        self.channel.loseConnection()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Starts to process the request without Twisted's parsing of query and form.

        For a form of four megabytes this parsing would take seconds, and Django parses query and form again.
        """
        self.content.seek(0)
        self._forget_unsafe_headers()
        self.args: dict[bytes, list[bytes]] = {}
        self.method, self.uri, self.clientproto = command, path, version
        self.path = path.partition(b"?")[0]
        self.process()

    def _forget_unsafe_headers(self) -> None:
        """Removes the headers that are unsafe for daphne.

        Daphne trusts some of them from any client. It cannot read others, or takes too long to read them.
        """
        # Suppose that a proxy refuses requests for ``/metrics`` from outside. A client requests ``/x/metrics``, and this
        # header says that the site's root is ``/x``. Daphne would trust the header, and Django would serve ``/metrics``.
        self.requestHeaders.removeHeader(b"daphne-root-path")
        # Without this header daphne never makes a WebSocket, which would have none of the limits. The request is an
        # ordinary one.
        self.requestHeaders.removeHeader(b"upgrade")
        # ``http.cookies`` of Python before 3.11.10 and 3.12.6 searches the rest of a value again for each backslash. To
        # decode a cookie of 16 kB takes almost a second.
        if _cookie_steps(self.requestHeaders.getRawHeaders(b"cookie", ())) > _COOKIE_STEPS:
            self.requestHeaders.removeHeader(b"cookie")


def _cookie_steps(headers: Iterable[bytes]) -> int:
    return sum(len(value) * value.count(b"\\") for header in headers for value in header.split(b";"))
