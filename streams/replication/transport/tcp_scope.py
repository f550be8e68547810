"""Raw TCP connections as ASGI: the scope ``tcp`` beside ``http`` and ``websocket``, on daphne's reactor.

Knows nothing of the replication protocol; described for other users in ``docs/reference/tcp-scope.md``. Connections
live on the reactor's own asyncio loop, because its transports tell how many bytes wait; daphne keeps the book of
applications. Both directions are bounded: reading pauses while the application has not taken what was read, and what
an application writes waits here in pieces that may be shared by many connections. Who may connect, and TLS, is the
business of ``gate``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from daphne.http_protocol import WebRequest
from daphne.server import Server as DaphneServer
from daphne.server import twisted_loop
from twisted.internet import defer, reactor

from streams.replication.protocol.access import Access
from streams.replication.transport.admission import Admission
from streams.replication.transport.http_limits import HttpBounds, HttpLimits
from streams.replication.transport.kernel_buffers import kernel_bytes
from streams.replication.transport.tcp_places import TcpPlaces
from streams.replication.transport.tls import Certificates, Refusal
from streams.runtime.logs import get_logger

__all__ = ["AsgiServer", "ListenerLimits", "TcpConnection"]

log = get_logger(__name__)

#: Unread input of one application at which reading stops, and at which it goes on.
INPUT_HIGH_BYTES, INPUT_LOW_BYTES = 32 * 1024, 8 * 1024
#: What a message of input takes besides its bytes.
MESSAGE_BYTES = 256
#: Output that is handed to the transport at a time; the rest waits in pieces.
TRANSPORT_HIGH_BYTES = 64 * 1024
#: At an orderly end, how long the request of a connection that was just made may take to come, and the last answer to go.
SETTLE_SECONDS = 0.2
#: Refusals for one reason are logged no more often than this; all are counted.
REFUSAL_LOG_SECONDS = 1.0
#: A WebSocket is accepted when its session has been read; when a server comes back, all its viewers ask for that at once.
WEBSOCKET_HANDSHAKE_SECONDS = 30
Message = dict[str, Any]
Application = Callable[..., Awaitable[None]]


class TcpConnection(asyncio.Protocol):
    """One accepted connection. The object itself is the scope's extension ``tcp.transport``.

    All methods are called on the loop. `write` never blocks; watch `buffered_bytes`.
    """

    def __init__(self, server: AsgiServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._input: deque[Message] = deque()
        self._input_bytes = 0
        self._input_ready = asyncio.Event()
        self._accepted = False
        self._paused_reading = False
        self._output: deque[bytes] = deque()
        self._output_bytes = 0
        self._can_write = True
        self._is_closing = False

    # --- what the application uses --------------------------------------------------------------------------------

    def know(self) -> None:
        """The client has said what it wants: from now on its connection does not give way to others."""
        self._server.known(self)

    def write(self, data: bytes) -> None:
        """Send bytes after all earlier ones; ignored once the connection is closing."""
        if self._is_closing or not data:
            return
        if self._can_write and not self._output and self._transport is not None:
            self._transport.write(data)
            return
        self._output.append(data)
        self._output_bytes += len(data)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        if self._transport is None:
            return 0
        return self._output_bytes + self._transport.get_write_buffer_size()

    @property
    def waiting_lines(self) -> int:
        """Ends of lines in the pieces that wait here; what the transport has taken is not looked at."""
        return sum(piece.count(b"\n") for piece in self._output)

    @property
    def kernel_bytes(self) -> tuple[int, int]:
        """Bytes in the system's buffers: sent and not acknowledged, received and not read. Zeros where it does not tell."""
        made = self._transport.get_extra_info("socket") if self._transport is not None else None
        return kernel_bytes(made.fileno()) if made is not None else (0, 0)

    def drop_waiting(self) -> int:
        """Forget the pieces that were not handed to the transport yet, and tell how many bytes they had.

        What the peer gets is then a whole number of pieces, so of whole lines when pieces are whole lines.
        """
        dropped, self._output_bytes = self._output_bytes, 0
        self._output.clear()
        return dropped

    def close(self) -> None:
        """Close once everything written has gone out."""
        self._is_closing = True
        if self._transport is not None and not self._output:
            self._transport.close()

    def abort(self) -> None:
        """Close now; what was not sent is lost."""
        self._is_closing = True
        self.drop_waiting()
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=TRANSPORT_HIGH_BYTES)
        self._transport.pause_reading()  # until the application accepts
        self._paused_reading = True
        asyncio.get_running_loop().call_soon(self._pause_again)
        scope = {
            "type": "tcp",
            "client": _address(self._transport.get_extra_info("peername")),
            "server": _address(self._transport.get_extra_info("sockname")),
            "extensions": {"tcp.transport": self, **_tls_extension(self._transport)},
        }
        self._put({"type": "tcp.connect"})
        self._server.start_application(self, scope)

    def data_received(self, data: bytes) -> None:
        self._put({"type": "tcp.receive", "bytes": data})
        if self._input_bytes > INPUT_HIGH_BYTES and self._transport is not None:
            self._transport.pause_reading()
            self._paused_reading = True

    def eof_received(self) -> bool:
        """The peer sends no more; the application may still answer what came before."""
        self._put({"type": "tcp.eof"})
        return True

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        while self._output and self._can_write and self._transport is not None:
            piece = self._output.popleft()
            self._output_bytes -= len(piece)
            self._transport.write(piece)
        if self._is_closing and not self._output and self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.drop_waiting()
        self._put({"type": "tcp.disconnect", "reason": str(exc or "")})
        self._server.forget(self)

    # --- ASGI -----------------------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """The application's next message."""
        while not self._input:
            self._input_ready.clear()
            await self._input_ready.wait()
        message = self._input.popleft()
        self._input_bytes -= _weight(message)
        if self._input_bytes < INPUT_LOW_BYTES:
            self._resume_reading()
        return message

    def handle_reply(self, message: Message) -> None:
        """A message of the application; called by daphne."""
        kind = message["type"]
        if kind == "tcp.accept":
            self._accepted = True
            self._resume_reading()
        elif kind == "tcp.send":
            self.write(message["bytes"])
        elif kind == "tcp.close":
            self.abort() if message.get("abort") else self.close()
        else:
            raise ValueError(f"{kind!r} cannot be sent on a tcp scope; use tcp.accept, tcp.send or tcp.close.")

    def handle_exception(self, exception: BaseException) -> None:
        """The application failed; called by daphne, which has logged it."""
        self.abort()

    def check_timeouts(self) -> None:
        """Called by daphne every two seconds; times are the application's business here."""

    def _pause_again(self) -> None:
        """The event loop of Python 3.11.2 begins to read after `connection_made`, whatever that has asked for."""
        if self._paused_reading and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._accepted and self._paused_reading and self._transport is not None and not self._transport.is_closing():
            self._paused_reading = False
            self._transport.resume_reading()

    def _put(self, message: Message) -> None:
        self._input.append(message)
        self._input_bytes += _weight(message)
        self._input_ready.set()


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """How much a server takes."""

    tcp_connections: int = 5_000
    tcp_of_address: int = 0
    """Connections from one address (IPv6: one /64; this machine counts as one); 0: no limit."""
    handshake_seconds: float = 10.0
    http: HttpBounds = field(default_factory=HttpBounds)


class AsgiServer(DaphneServer):
    """daphne with raw TCP connections; HTTP and WebSocket only where ``http_sockets`` listen.

    Sockets come bound and listening, so that errors of binding are the caller's and port 0 is known before the start.
    ``when_ready`` is called on the loop once everything accepts; ``when_stopping`` is awaited first at an orderly end,
    and gets `stop_within_seconds`. HTTP requests that have come by then are answered, within `finish_within_seconds`; new
    connections are not taken meanwhile, so that a proxy in front asks another server.
    """

    stop_within_seconds = 1.5
    finish_within_seconds = 10.0

    def __init__(
        self,
        application: Application,
        *,
        http_sockets: Sequence[socket.socket] = (),
        tcp_sockets: Sequence[socket.socket] = (),
        limits: ListenerLimits | None = None,
        access: Access | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        endpoints = [f"fd:fileno={one.fileno()}" for one in http_sockets]
        super().__init__(
            application,
            endpoints=endpoints or ["none"],
            http_timeout=None,
            server_name="replsite",
            websocket_handshake_timeout=WEBSOCKET_HANDSHAKE_SECONDS,
            websocket_connect_timeout=WEBSOCKET_HANDSHAKE_SECONDS,
        )
        self.endpoints = endpoints
        self.connections: dict[Any, dict[str, Any]] = {}
        self.limits = limits or ListenerLimits()
        self.handshake_limit_seconds = self.limits.handshake_seconds
        self.http_limits = HttpLimits(self.limits.http)
        self.refusals: Counter[str] = Counter()
        self.when_ready: Callable[[], Awaitable[None]] | None = None
        self.when_stopping: Callable[[], Awaitable[None]] | None = None
        self.failure: BaseException | None = None
        self._access = access or Access(has_tls=certificates is not None)
        self._certificates = certificates
        self._tcp_sockets = tuple(tcp_sockets)
        self._places = TcpPlaces(self.limits.tcp_connections, self.limits.tcp_of_address)
        self._tcp_listeners: list[asyncio.Server] = []
        self._http_ports: list[Any] = []
        self._starting: asyncio.Task[None] | None = None
        self._refusals_logged: dict[str, float] = {}

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM; returns when everything is closed, and raises what made the start fail."""
        reactor.callWhenRunning(self._begin)
        super().run()
        if self.failure is not None:
            raise self.failure

    # --- connections ----------------------------------------------------------------------------------------------

    def entered(self, gate: Admission, host: str) -> Refusal | None:
        """A connection at the gate; why there is no room for it."""
        return self._places.enter(gate, host)

    def left(self, gate: Admission) -> None:
        """It is gone."""
        self._places.leave(gate)

    def passed(self, gate: Admission, above: asyncio.Protocol) -> None:
        """It came through the gate: the connection goes on as the protocol above."""
        self._places.hand_on(gate, cast(TcpConnection, above))

    def known(self, connection: TcpConnection) -> None:
        """The application knows the client."""
        self._places.know(connection)

    def refused(self, reason: Refusal, host: str, detail: str = "") -> None:
        """Count it; one line in the log, but for those that come in floods."""
        self.refusals[reason.value] += 1
        now = time.monotonic()
        if now >= self._refusals_logged.get(reason.value, 0.0) + REFUSAL_LOG_SECONDS:
            self._refusals_logged[reason.value] = now
            log.warning("listener.connection_refused", client=host, reason=reason.value, detail=detail)

    def tls_context(self) -> ssl.SSLContext:
        """For the handshake of one more client."""
        if self._certificates is None:
            raise RuntimeError("TLS without certificates: the gate let somebody speak it.")
        return self._certificates.context()

    def start_application(self, connection: TcpConnection, scope: Message) -> None:
        """Run the application on a connection; the connection ends with it."""
        scope.setdefault("asgi", {"version": "3.0"})
        self.protocol_connected(connection)
        task = asyncio.ensure_future(self._run_application(connection, scope))
        self.connections[connection]["application_instance"] = task

    def forget(self, connection: TcpConnection) -> None:
        """The transport is gone."""
        self._places.leave(connection)
        if connection in self.connections:
            self.protocol_disconnected(connection)

    async def _run_application(self, connection: TcpConnection, scope: Message) -> None:
        async def send(message: Message) -> None:
            connection.handle_reply(message)

        try:
            await self.application(scope, connection.receive, send)
        finally:
            connection.close()

    # --- start and end --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.http_limits.apply(self.http_factory)
        self._starting = asyncio.ensure_future(self._start(), loop=twisted_loop)

    def _gate(self) -> Admission:
        return Admission(self, self._access.of, TcpConnection(self))

    async def _start(self) -> None:
        try:
            if self.when_ready is not None:
                await self.when_ready()
            for one in self._tcp_sockets:
                listener = await twisted_loop.create_server(self._gate, sock=one)
                self._tcp_listeners.append(listener)
            self.announce()
        except Exception as error:  # noqa: BLE001 - whatever it is, `run` raises it after the reactor has stopped
            self.failure = error
            self.stop()

    def announce(self) -> None:
        """Everything accepts; a hook for subclasses."""

    def kill_all_applications(self) -> defer.Deferred[Any]:
        """Close listeners and connections in order; called by daphne before the reactor stops."""
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._end(), loop=twisted_loop))

    async def _end(self) -> None:
        for listener in self._tcp_listeners:
            listener.close()
        await asyncio.gather(self._leave(), self._finish_requests())
        for connection in self._places:
            connection.abort()
        running = [d["application_instance"] for d in self.connections.values() if "application_instance" in d]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _leave(self) -> None:
        if self.when_stopping is not None:
            with contextlib.suppress(TimeoutError):  # whoever does not get ready in time is cut afterwards
                await asyncio.wait_for(self.when_stopping(), self.stop_within_seconds)

    # --- the last HTTP requests -----------------------------------------------------------------------------------

    def listen_success(self, port: Any) -> None:
        """A listener of HTTP accepts; called by daphne."""
        super().listen_success(port)
        self._http_ports.append(port)

    async def _finish_requests(self) -> None:
        """Take whoever has connected already and nobody else; then wait for the answers."""
        for port in self._http_ports:
            port.doRead()  # the kernel would reset what it has accepted for us
            await defer.maybeDeferred(port.stopListening).asFuture(twisted_loop)
        started = time.monotonic()
        settled = started + (SETTLE_SECONDS if self.http_limits.open else 0.0)
        while self._requests_at_hand() or time.monotonic() < settled:
            if time.monotonic() > started + self.finish_within_seconds:
                log.warning("listener.requests_cut", requests=self._requests_at_hand())
                return
            await asyncio.sleep(0.01)

    def _requests_at_hand(self) -> int:
        return sum(
            isinstance(protocol, WebRequest) and "disconnected" not in details
            for protocol, details in self.connections.items()
        )


def _weight(message: Message) -> int:
    """How much a message of input counts; without its own size a client that sends single bytes fills the memory."""
    return len(message.get("bytes", b"")) + MESSAGE_BYTES


def _tls_extension(transport: asyncio.Transport) -> Message:
    """ASGI's extension ``tls``: who the client is by its certificate."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return {}
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return {"tls": {"client_cert_name": ", ".join(names), "tls_version": transport.get_extra_info("tls_version")}}


def _address(name: Any) -> list[Any] | None:
    """ASGI's ``[host, port]``."""
    return [name[0], name[1]] if isinstance(name, tuple) else None
