"""HTTP and WebSocket by daphne, with limits, and with an end that answers every request that has arrived."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from daphne.http_protocol import WebRequest
from daphne.server import Server as DaphneServer
from daphne.server import twisted_loop
from twisted.internet import defer, reactor

from streams.replication.transport.http_limits import HttpBounds, HttpLimits
from streams.replication.transport.last_connections import drop_handshakes, is_queued
from streams.replication.transport.tcp_scope import Application
from streams.runtime.logs import get_logger

__all__ = ["HttpServer"]

log = get_logger(__name__)
#: The time, at an orderly end, in which handshakes that have begun are finished and their connections accepted.
ACCEPT_SECONDS = 0.01
#: The time, at an orderly end, for the request of a just accepted connection to arrive and for the last answer to leave.
SETTLE_SECONDS = 2.0
#: The time, at an orderly end, for requests that have arrived to be answered.
FINISH_SECONDS = 10.0
#: A WebSocket is accepted only after its session was read. After a restart all viewers of a server reconnect at once, so
#: reading the sessions may take long.
WEBSOCKET_HANDSHAKE_SECONDS = 30


class HttpServer(DaphneServer):
    """daphne on one listening socket.

    ``begin`` is awaited when the event loop runs, and ``end`` at an orderly end, before the event loop stops. An error of
    ``begin`` ends the server, and `run` raises it. ``end`` must call `finish_requests` and `cancel_requests`.
    """

    def __init__(
        self,
        application: Application,
        listener: socket.socket,
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
        bounds: HttpBounds | None = None,
    ) -> None:
        super().__init__(
            application,
            endpoints=["none"],  # daphne wants one; its own cannot be a socket file that listens already
            http_timeout=None,
            server_name="replsite",
            websocket_handshake_timeout=WEBSOCKET_HANDSHAKE_SECONDS,
            websocket_connect_timeout=WEBSOCKET_HANDSHAKE_SECONDS,
        )
        self.endpoints: list[str] = []
        self.connections: dict[Any, dict[str, Any]] = {}
        self._listener = listener
        self.http_limits = HttpLimits(bounds or HttpBounds())
        self._begin_all, self._end_all = begin, end
        self._failure: BaseException | None = None
        self._port: Any = None

    def run(self) -> None:
        """Serves until SIGINT or SIGTERM. Returns when everything is closed. Raises the error that made the start fail."""
        reactor.callWhenRunning(self._begin)
        super().run()
        if self._failure is not None:
            raise self._failure

    def _begin(self) -> None:
        self.http_limits.apply(self.http_factory)
        clock: Any = reactor
        self._port = clock.adoptStreamPort(self._listener.fileno(), self._listener.family, self.http_factory)
        self._listener.close()  # the reactor has a copy
        self._beginning = asyncio.ensure_future(self._start(), loop=twisted_loop)

    async def _start(self) -> None:
        try:
            await self._begin_all()
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
        while self._requests_at_hand() or (
            self.http_limits.has_unfinished and time.monotonic() < started + SETTLE_SECONDS
        ):
            if time.monotonic() > started + FINISH_SECONDS:
                log.warning("listener.requests_cut", requests=self._requests_at_hand())
                return
            await asyncio.sleep(0.01)

    def _requests_at_hand(self) -> int:
        return sum(
            isinstance(protocol, WebRequest) and "disconnected" not in details
            for protocol, details in self.connections.items()
        )

    async def cancel_requests(self) -> None:
        """Cancels the applications of all connections that are still open."""
        running = [d["application_instance"] for d in self.connections.values() if "application_instance" in d]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
