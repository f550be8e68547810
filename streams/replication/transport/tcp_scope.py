"""Raw TCP connections as ASGI: the scope ``tcp`` beside ``http``, on daphne's reactor.

This module does not know the replication protocol. ``docs/reference/tcp-scope.md`` describes the scope for other
applications. Connections run on the reactor's asyncio loop, because asyncio's transports report the number of unsent
bytes. Daphne keeps the list of applications of all connections.

Input and output are bounded. Reading from the socket pauses while the application has not taken its earlier input.
Output waits in pieces of bytes that many connections may share. Network rules and TLS are in `admission`.
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
from streams.replication.transport.admission import Admission, Turns
from streams.replication.transport.http_limits import HttpBounds, HttpLimits
from streams.replication.transport.kernel_buffers import kernel_bytes
from streams.replication.transport.last_connections import drop_handshakes, is_queued
from streams.replication.transport.tcp_places import TcpPlaces
from streams.replication.transport.tls import Certificates, Refusal
from streams.runtime.logs import get_logger
from streams.stream_settings import StreamSettings

__all__ = ["AsgiServer", "ListenerLimits", "TcpConnection"]

log = get_logger(__name__)

#: Unread input of one application, in bytes, at which reading from the socket pauses, and at which it resumes.
INPUT_HIGH_BYTES, INPUT_LOW_BYTES = 32 * 1024, 8 * 1024
#: Memory of a message of input besides its data. Without it, a client that sends single bytes could fill the memory.
MESSAGE_BYTES = 256
#: The transport's write buffer, in bytes. Further output waits in shared pieces.
TRANSPORT_HIGH_BYTES = 64 * 1024
#: The most TCP connections that are accepted at a time, before other work of the event loop has its turn, and the pause
#: after an error of accepting, such as too few file descriptors.
ACCEPTED_AT_ONCE, ACCEPT_AGAIN_SECONDS = 16, 1.0
#: The time, at an orderly end, in which handshakes that have begun are finished and their connections accepted.
ACCEPT_SECONDS = 0.01
#: The time, at an orderly end, for the request of a just accepted connection to arrive and for the last answer to leave.
SETTLE_SECONDS = 2.0
#: The least time between two log lines about refusals for the same reason. All refusals are counted.
REFUSAL_LOG_SECONDS = 1.0
Message = dict[str, Any]
Application = Callable[..., Awaitable[None]]


class TcpConnection(asyncio.Protocol):
    """One accepted connection. The object itself is the scope's extension ``tcp.transport``.

    All methods must be called on the event loop. `write` never blocks, so the application must watch `buffered_bytes`.
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

    # --- for the application --------------------------------------------------------------------------------------

    def know(self) -> None:
        """Marks the client as known, so that the connection is not closed to make room for others.

        The application decides when it calls this method. The replication protocol does so when a client has sent its
        name or has asked for facts.
        """
        self._server.known(self)

    def write(self, data: bytes) -> None:
        """Sends ``data`` after all earlier bytes. Does nothing if the connection is closing."""
        if self._is_closing or not data:
            return
        if self._can_write and not self._output and self._transport is not None:
            self._transport.write(data)
            return
        # The piece is kept as a reference. The transport would copy the piece for each connection.
        self._output.append(data)
        self._output_bytes += len(data)

    @property
    def buffered_bytes(self) -> int:
        """Returns the number of written bytes that the kernel has not accepted yet, or 0 if the connection is closed."""
        if self._transport is None:
            return 0
        return self._output_bytes + self._transport.get_write_buffer_size()

    @property
    def waiting_lines(self) -> int:
        """Returns the number of line ends in the output that the transport has not received yet."""
        return sum(piece.count(b"\n") for piece in self._output)

    @property
    def kernel_bytes(self) -> tuple[int, int]:
        """Returns two byte counts of the kernel's buffers: (sent but not acknowledged, received but not read).

        Both counts are 0 on systems that do not report them.
        """
        made = self._transport.get_extra_info("socket") if self._transport is not None else None
        return kernel_bytes(made.fileno()) if made is not None else (0, 0)

    def drop_waiting(self) -> int:
        """Drops the pieces of output that the transport has not received yet. Returns the number of dropped bytes.

        The client still receives a whole number of pieces. If each piece is a whole line, it receives only whole lines.
        """
        dropped, self._output_bytes = self._output_bytes, 0
        self._output.clear()
        return dropped

    def close(self) -> None:
        """Closes the connection after all written bytes have been sent."""
        self._is_closing = True
        if self._transport is not None and not self._output:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once. Unsent bytes are lost."""
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
        # The event loop of Python 3.11.2 starts reading after `connection_made`, even if that has paused reading.
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
        """Reports the end of the client's input. The application may still answer earlier input."""
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
        """Returns the next ASGI message for the application. Waits until there is one."""
        while not self._input:
            self._input_ready.clear()
            await self._input_ready.wait()
        message = self._input.popleft()
        self._input_bytes -= _weight(message)
        if self._input_bytes < INPUT_LOW_BYTES:
            self._resume_reading()
        return message

    def handle_reply(self, message: Message) -> None:
        """Executes an ASGI message of the application. Raises `ValueError` for a message of an unknown type.

        Called by `AsgiServer` and by daphne.
        """
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
        """Aborts the connection after the application failed. Called by daphne, which has logged the error."""
        self.abort()

    def check_timeouts(self) -> None:
        """Does nothing: time limits are the application's task. Called by daphne every two seconds."""

    def _pause_again(self) -> None:
        # The transport believes that it is paused, and would ignore a second `pause_reading` alone.
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
    """The limits of a server's listeners."""

    tcp_connections: int = StreamSettings().connection_limit
    tcp_of_address: int = StreamSettings().connection_address_limit
    """Connections from one address (IPv6: one /64; this machine counts as one); 0: no limit."""
    handshake_seconds: float = StreamSettings().handshake_limit_seconds
    http: HttpBounds = field(default_factory=HttpBounds)


class AsgiServer(DaphneServer):
    """daphne with raw TCP connections. Serves HTTP only on ``http_sockets``.

    Sockets must be bound and listening. So the caller handles errors of binding. If it asked for port 0, it knows the
    chosen port before the start. ``when_ready`` is awaited on the event loop before TCP connections are accepted. An
    orderly end first awaits ``when_stopping``, for at most `stop_within_seconds`. Then HTTP requests that have arrived
    are answered, for at most `finish_within_seconds`. Meanwhile no new connections are accepted, so that a reverse
    proxy uses another server. What is left is cancelled, and ``when_cancelled`` is awaited before the event loop ends.
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
        )
        self.endpoints = endpoints
        self.connections: dict[Any, dict[str, Any]] = {}
        self.limits = limits or ListenerLimits()
        self.handshake_limit_seconds = self.limits.handshake_seconds
        self.handshakes = Turns()
        self.http_limits = HttpLimits(self.limits.http)
        self.refusals: Counter[str] = Counter()
        self.when_ready: Callable[[], Awaitable[None]] | None = None
        self.when_stopping: Callable[[], Awaitable[None]] | None = None
        self.when_cancelled: Callable[[], Awaitable[None]] | None = None
        self.failure: BaseException | None = None
        self._access = access or Access(has_tls=certificates is not None)
        self._certificates = certificates
        self._tcp_sockets = tuple(tcp_sockets)
        self._places = TcpPlaces(self.limits.tcp_connections, self.limits.tcp_of_address)
        self._accepting: list[asyncio.Task[None]] = []
        self._http_ports: list[Any] = []
        self._starting: asyncio.Task[None] | None = None
        self._refusals_logged: dict[str, float] = {}

    def run(self) -> None:
        """Serves until SIGINT or SIGTERM. Returns when everything is closed. Raises the error that made the start fail."""
        reactor.callWhenRunning(self._begin)
        super().run()
        if self.failure is not None:
            raise self.failure

    # --- connections ----------------------------------------------------------------------------------------------

    def entered(self, gate: Admission, host: str) -> Refusal | None:
        """Takes a place for a new connection and returns null. If there is no place, returns the reason of the refusal."""
        return self._places.enter(gate, host)

    def left(self, gate: Admission) -> None:
        """Releases the place of a connection that ended during admission. Has no effect after `passed`."""
        self._places.leave(gate)

    def passed(self, gate: Admission, above: asyncio.Protocol) -> None:
        """Transfers the place of a connection from ``gate`` to the protocol ``above``."""
        self._places.hand_on(gate, cast(TcpConnection, above))

    def known(self, connection: TcpConnection) -> None:
        """Marks a connection as known, so that it is not closed to make room."""
        self._places.know(connection)

    def refused(self, reason: Refusal, host: str, detail: str = "") -> None:
        """Counts a refusal. Logs at most one line per reason in `REFUSAL_LOG_SECONDS`."""
        self.refusals[reason.value] += 1
        now = time.monotonic()
        if now >= self._refusals_logged.get(reason.value, 0.0) + REFUSAL_LOG_SECONDS:
            self._refusals_logged[reason.value] = now
            log.warning("listener.connection_refused", client=host, reason=reason.value, detail=detail)

    def tls_context(self) -> ssl.SSLContext:
        """Returns the TLS context for the next handshake. Raises `RuntimeError` if the server has no certificates."""
        if self._certificates is None:
            raise RuntimeError("TLS without certificates: the admission allowed it.")
        return self._certificates.context()

    def start_application(self, connection: TcpConnection, scope: Message) -> None:
        """Starts the application on a connection. When the application ends, the connection is closed."""
        scope.setdefault("asgi", {"version": "3.0"})
        self.protocol_connected(connection)
        task = asyncio.ensure_future(self._run_application(connection, scope))
        self.connections[connection]["application_instance"] = task

    def forget(self, connection: TcpConnection) -> None:
        """Releases the place of a connection whose transport is lost, and reports the disconnection to daphne."""
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
            self._accepting = [asyncio.ensure_future(self._accept(one)) for one in self._tcp_sockets]
            self.announce()
        except Exception as error:  # noqa: BLE001 - any error: `run` raises it after the reactor has stopped
            self.failure = error
            self.stop()

    async def _accept(self, listener: socket.socket) -> None:
        """Accepts TCP connections until it is cancelled, a few at a time.

        The event loop's own server accepts all waiting connections in one iteration. So either a crowd of 2,000 clients
        keeps all followers waiting for seconds, or the loop's call of ``listen`` makes the backlog too short for it.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                made = [(await loop.sock_accept(listener))[0]]
                with contextlib.suppress(OSError):  # no more; or an error that the next turn meets, too
                    while len(made) < ACCEPTED_AT_ONCE:
                        made.append(listener.accept()[0])
            except ConnectionAbortedError:  # that client is gone
                continue
            except OSError as error:
                log.warning("listener.not_accepted", error=str(error))
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            begun = (loop.connect_accepted_socket(self._gate, one) for one in made)
            await asyncio.gather(*begun, return_exceptions=True)  # the error of a client that is gone already

    def announce(self) -> None:
        """Called when all listeners accept connections. Does nothing here. A subclass may report this event."""

    def kill_all_applications(self) -> defer.Deferred[Any]:
        """Closes listeners and connections in an orderly way. Called by daphne before the reactor stops."""
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._end(), loop=twisted_loop))

    async def _end(self) -> None:
        # TCP connections are not accepted any more. `when_stopping` and the last HTTP requests then run side by side.
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listener in self._tcp_sockets:
            listener.close()
        await asyncio.gather(self._leave(), self._finish_requests())
        for connection in self._places:
            connection.abort()
        running = [d["application_instance"] for d in self.connections.values() if "application_instance" in d]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self.when_cancelled is not None:
            await self.when_cancelled()

    async def _leave(self) -> None:
        if self.when_stopping is not None:
            with contextlib.suppress(TimeoutError):  # `_end` aborts connections that are still open then
                await asyncio.wait_for(self.when_stopping(), self.stop_within_seconds)

    # --- the last HTTP requests -----------------------------------------------------------------------------------

    def listen_success(self, port: Any) -> None:
        """Records an HTTP port that accepts connections. Called by daphne."""
        super().listen_success(port)
        self._http_ports.append(port)

    async def _finish_requests(self) -> None:
        """Accepts connections that wait at the HTTP ports, closes the ports, and waits until open requests are answered."""
        started = time.monotonic()
        for port in self._http_ports:
            drop_handshakes(port.socket)
        if self._http_ports:
            await asyncio.sleep(ACCEPT_SECONDS)
        for port in self._http_ports:
            # One call of `doRead` accepts only as many connections as earlier calls found, so it is repeated. The
            # deadline is for a process without free descriptors, which accepts none.
            while is_queued(port.socket) and time.monotonic() < started + SETTLE_SECONDS:
                port.doRead()
            await defer.maybeDeferred(port.stopListening).asFuture(twisted_loop)
        while self._requests_at_hand() or (
            self.http_limits.has_unfinished and time.monotonic() < started + SETTLE_SECONDS
        ):
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
    """Returns the number of bytes that a message counts towards the input limit: its data plus `MESSAGE_BYTES`."""
    return len(message.get("bytes", b"")) + MESSAGE_BYTES


def _tls_extension(transport: asyncio.Transport) -> Message:
    """Returns ASGI's extension ``tls``: the common name in the client's certificate, and the TLS version. Empty without TLS."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return {}
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return {"tls": {"client_cert_name": ", ".join(names), "tls_version": transport.get_extra_info("tls_version")}}


def _address(name: Any) -> list[Any] | None:
    """Returns a socket's address in ASGI's form ``[host, port]``, or null for a Unix socket, which has no host and port."""
    return [name[0], name[1]] if isinstance(name, tuple) else None
