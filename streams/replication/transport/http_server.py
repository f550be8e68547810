"""HTTP by daphne for a reverse proxy, with an end that answers every request that has arrived.

The proxy bounds what clients may do: how many there are, how slowly they send and read. This server keeps what protects
it from anything that a proxy passes on: a limit on bodies, and headers that daphne must not read.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import daphne.server  # noqa: F401 - first: it installs the reactor, and what follows would install another
from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.server import Server as DaphneServer
from daphne.server import twisted_loop
from twisted.internet import defer, reactor
from twisted.internet.protocol import connectionDone
from twisted.web import http

from streams.replication.transport.kernel_buffers import end_unanswered
from streams.replication.transport.last_connections import drop_handshakes, is_queued
from streams.replication.transport.tcp_scope import Application
from streams.runtime.logs import get_logger
from streams.stream_settings import StreamSettings

log = get_logger(__name__)
BODY_LIMIT = "HTTP body too long"
#: The time, at an orderly end, in which handshakes that have begun are finished and their connections accepted.
ACCEPT_SECONDS = 0.01
#: The time, at an orderly end, for the request of a just accepted connection to arrive and for the last answer to leave.
SETTLE_SECONDS = 2.0
#: The time, at an orderly end, for requests that have arrived to be answered.
FINISH_SECONDS = 10.0
#: The time, at an orderly end, for applications to notice that the clients of their requests are gone.
DISCONNECT_SECONDS = 0.2
#: The least bytes that a piece of a body counts against the limit, so that a body of single bytes reaches it early.
_PIECE_BYTES = 64
#: The most steps in which Python decodes the escapes of a request's cookies: for each value, its length times its
#: backslashes. Django's cookie of messages, with at most 2,048 characters, needs half of these steps.
_COOKIE_STEPS = 4_000_000
_TOO_LONG = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HttpServer(DaphneServer):
    """daphne on one listening socket.

    ``start`` is awaited when the event loop runs, and ``end`` at an orderly end, before the event loop stops. An error of
    ``start`` ends the server, and `run` raises it. ``end`` must call `finish_requests` and `cancel_requests`. ``refused``
    counts refused requests by reason.
    """

    def __init__(
        self,
        application: Application,
        listener: socket.socket,
        start: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
        body_limit_bytes: int = StreamSettings().http_body_limit_bytes,
        unanswered_seconds: float = 2 * StreamSettings().send_stall_limit_seconds,
    ) -> None:
        super().__init__(
            application,
            endpoints=["none"],  # daphne wants one; its own cannot be a socket file that listens already
            http_timeout=None,
            server_name="replsite",
        )
        self.endpoints: list[str] = []
        self.connections: dict[Any, dict[str, Any]] = {}
        self.refused: Counter[str] = Counter()
        self.body_limit_bytes = body_limit_bytes
        self.channels: set[_Channel] = set()
        self._unanswered_seconds = unanswered_seconds
        self._listener = listener
        self._start_all, self._end_all = start, end
        self._failure: BaseException | None = None
        self._port: Any = None

    def run(self) -> None:
        """Serves until SIGINT or SIGTERM. Returns when everything is closed. Raises the error that made the start fail."""
        reactor.callWhenRunning(self._adopt_listener)
        super().run()
        if self._failure is not None:
            raise self._failure

    def _adopt_listener(self) -> None:
        posix: Any = reactor
        self._port = posix.adoptStreamPort(self._listener.fileno(), self._listener.family, _Factory(self))
        self._listener.close()  # the reactor has a copy
        self._beginning = asyncio.ensure_future(self._start(), loop=twisted_loop)
        # daphne keeps what a browser does not take, up to some megabytes for each, also when its answer has ended.
        watch = end_unanswered(self._unanswered_seconds, self._descriptors, _Channel.forceAbortClient)
        self._watch = asyncio.ensure_future(watch, loop=twisted_loop)

    def _descriptors(self) -> dict[_Channel, int]:
        # A reverse proxy at a socket file ends its own clients, and the kernel does not tell what it has taken.
        is_tcp = self._listener.family != socket.AF_UNIX
        return {channel: cast(Any, channel.transport).fileno() for channel in self.channels} if is_tcp else {}

    async def _start(self) -> None:
        try:
            await self._start_all()
        except Exception as error:  # noqa: BLE001 - any error: `run` raises it after the reactor has stopped
            self._failure = error
            self.stop()

    def kill_all_applications(self) -> defer.Deferred[Any]:
        """Ends everything in an orderly way. Called by daphne before the reactor stops."""
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._end_all(), loop=twisted_loop))

    async def finish_requests(self) -> None:
        """Accepts connections that wait at the port, closes the port, and waits until open requests are answered."""
        started = time.monotonic()
        drop_handshakes(self._port.socket)
        await asyncio.sleep(ACCEPT_SECONDS)
        # One call of `doRead` accepts only as many connections as earlier calls found, so it is repeated. The deadline is
        # for a process without free descriptors, which accepts none.
        while is_queued(self._port.socket) and time.monotonic() < started + SETTLE_SECONDS:
            self._port.doRead()
        await defer.maybeDeferred(self._port.stopListening).asFuture(twisted_loop)
        while (at_hand := sum("disconnected" not in details for details in self.connections.values())) or (
            any(channel.is_unfinished for channel in self.channels) and time.monotonic() < started + SETTLE_SECONDS
        ):
            if time.monotonic() > started + FINISH_SECONDS:
                log.warning("listener.requests_cut", requests=at_hand)
                return
            await asyncio.sleep(0.01)

    async def cancel_requests(self) -> None:
        """Ends the applications of all open requests: as if their clients had gone, and then by cancelling them."""
        # Django ends what it has begun for a client that is gone. A call that is cancelled before leaves its tasks behind, which
        # go on without the request's thread, and write tracebacks.
        running = []
        for request, details in list(self.connections.items()):
            if "application_instance" in details:
                running.append(details["application_instance"])
                request.send_disconnect()
        if running:
            _, pending = await asyncio.wait(running, timeout=DISCONNECT_SECONDS)
            for task in pending:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


class _Channel(http.HTTPChannel):
    """An HTTP connection, which `HttpServer.channels` lists."""

    _has_request = True

    @property
    def is_unfinished(self) -> bool:
        """Returns true if its first request was not answered, bytes of a further one have arrived, or an answer is under way."""
        return self._has_request or self._waitingForTransport

    def connectionMade(self) -> None:
        super().connectionMade()
        self.factory.server.channels.add(self)

    def dataReceived(self, data: bytes) -> None:
        self._has_request = True
        super().dataReceived(data)

    def requestDone(self, request: Any) -> None:
        self._has_request = not self.persistent
        super().requestDone(request)

    def connectionLost(self, reason: Any = connectionDone) -> None:
        self.factory.server.channels.discard(self)
        super().connectionLost(reason)


class _Request(WebRequest):
    """daphne's request with a limit on its body, enforced while the body arrives, and without unsafe headers."""

    server: HttpServer
    _is_refused = False
    _weight = 0

    def handleContentChunk(self, data: bytes) -> None:
        self._weight += max(len(data), _PIECE_BYTES)
        if self._weight <= self.server.body_limit_bytes:
            super().handleContentChunk(data)
        elif not self._is_refused:  # later bytes, which were already read, are dropped
            self._is_refused = True
            self.server.refused[BODY_LIMIT] += 1
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
        # Suppose that a proxy refuses requests for ``/metrics`` from outside. A client requests ``/x/metrics``, and this
        # header says that the site's root is ``/x``. Daphne would trust the header, and Django would serve ``/metrics``.
        self.requestHeaders.removeHeader(b"daphne-root-path")
        # Without this header daphne never makes a WebSocket. The request is an ordinary one.
        self.requestHeaders.removeHeader(b"upgrade")
        # ``http.cookies`` of Python before 3.11.10 and 3.12.6 searches the rest of a value again for each backslash. To
        # decode a cookie of 16 kB takes almost a second.
        if _cookie_steps(self.requestHeaders.getRawHeaders(b"cookie", ())) > _COOKIE_STEPS:
            self.requestHeaders.removeHeader(b"cookie")


def _cookie_steps(headers: Iterable[bytes]) -> int:
    return sum(len(value) * value.count(b"\\") for header in headers for value in header.split(b";"))


class _Factory(HTTPFactory):
    """daphne's factory of connections, with ours and our requests."""

    @staticmethod
    def protocol() -> Any:
        return http._GenericHTTPChannelProtocol(_Channel())

    def buildProtocol(self, address: Any) -> Any:
        made = super().buildProtocol(address)
        made.requestFactory = _Request
        return made
