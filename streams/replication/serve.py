"""Runs a server in this process until it is stopped: replication alone, or together with HTTP.

Used by management commands. With HTTP, daphne's reactor runs the event loop, else asyncio does. Either handles the signals
of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import Error as DjangoError
from django.db import connections

from streams import epochs
from streams.browsers import clients
from streams.conf import stream_settings
from streams.core.names import name_without_number
from streams.db import driver
from streams.replication.errors import ReplicationError
from streams.replication.protocol.access import Access
from streams.replication.protocol.rights import RightsTable
from streams.replication.server.broadcaster import process_broadcaster
from streams.replication.server.worker_reports import process_reports
from streams.replication.transport.addresses import (
    Address,
    SocketFile,
    bind,
    bind_file,
    refuse_open_network,
    refuse_strangers,
)
from streams.replication.transport.descriptors import raise_descriptor_limit
from streams.replication.transport.tcp_scope import Application, ListenerLimits, TcpListener
from streams.replication.transport.tls import Certificates, TlsFiles
from streams.runtime import systemd
from streams.runtime.logs import get_logger

if TYPE_CHECKING:
    from streams.replication.transport.http_server import HttpServer

log = get_logger(__name__)
#: The time, at an orderly end, for followers to take what they were sent.
STOP_SECONDS = 1.5


class DatabaseNotUsable(ReplicationError):
    """A database that cannot be reached, or that does not have our tables."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses on which the server listens.

    Port 0 selects a free port. The endpoints that `serve` passes to ``when_ready`` have the selected ports.
    """

    replication: Address
    http: Address | SocketFile | None = None
    is_behind_proxy: bool = False
    """Nobody but a reverse proxy reaches ``http``. Otherwise it must be an address of this machine alone."""

    @property
    def ready_line(self) -> str:
        """Returns the line that a command prints when all listeners accept connections."""
        http = f"http={self.http} " if self.http else ""
        return f"ready {http}replication={self.replication}"


def serve(
    application: Callable[..., Awaitable[None]],
    wanted: Endpoints,
    when_ready: Callable[[Endpoints], None],
    tls: TlsFiles | None = None,
    when_cancelled: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM. Calls ``when_ready`` when all listeners accept connections.

    Awaits ``when_cancelled`` at the end, when all requests have ended: for threads of theirs that still call the event loop.

    Raises `BadAddress`, `BadCertificate`, `BadRights`, `PortTaken` or `DatabaseNotUsable` before it accepts a
    connection.
    """
    given = stream_settings()
    certificates = Certificates(tls) if tls is not None else None
    access = Access(given.plain_networks, has_tls=tls is not None)
    RightsTable(given.wire_rights)  # raises before anything is bound
    if tls is None:
        refuse_open_network(wanted.replication, given.plain_networks)
    if isinstance(wanted.http, Address) and not wanted.is_behind_proxy:
        refuse_strangers(wanted.http)
    _check_database()
    replication_socket, replication = bind(wanted.replication)
    http, http_socket = wanted.http, None
    if isinstance(http, SocketFile):
        http_socket = bind_file(http)
    elif http is not None:
        http_socket, http = bind(http)
    limits = ListenerLimits(
        *(given.connection_limit, given.connection_address_limit, given.handshake_limit_seconds),
        # Twice: a client for which much waits is to be told that it is too slow before its connection ends.
        unanswered_seconds=2 * given.send_stall_limit_seconds,
    )
    server = _Server(
        TcpListener(application, [replication_socket], raise_descriptor_limit(limits), access, certificates),
        f"{name_without_number(given.writer)} {replication}",
        lambda: when_ready(Endpoints(replication, http)),
        when_cancelled,
    )
    try:
        if http_socket is None:
            asyncio.run(server.run_alone())
        else:
            server.run_with_http(application, http_socket)
    except driver.DatabaseError as error:  # it was lost between the check and the start
        raise _not_usable(error) from error


class _Server:
    """What begins and ends with a server, whichever event loop runs it."""

    def __init__(
        self,
        listener: TcpListener,
        served_by: str,
        announce: Callable[[], None],
        when_cancelled: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._listener = listener
        self._http: HttpServer | None = None
        self._announce = announce
        self._when_cancelled = when_cancelled
        self._broadcaster, self._reports = process_broadcaster(served_by), process_reports(served_by)
        self._reports.more_counts = lambda: {"refused": self._refusals()}

    def _refusals(self) -> Counter[str]:
        return self._listener.refusals + (self._http.refused if self._http else Counter())

    def run_with_http(self, application: Application, listener: socket.socket) -> None:
        """Serves until SIGINT or SIGTERM."""
        from streams.replication.transport.http_server import HttpServer  # noqa: PLC0415 - loads the reactor

        body_limit, unanswered = stream_settings().http_body_limit_bytes, self._listener.limits.unanswered_seconds
        self._http = HttpServer(application, listener, self._start, self._end, body_limit, unanswered)
        self._http.run()

    async def run_alone(self) -> None:
        """Serves until SIGINT or SIGTERM."""
        is_over = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, is_over.set)
        try:
            await self._start()
            await is_over.wait()
        finally:
            await self._end()

    async def _start(self) -> None:
        self._watchdog = asyncio.ensure_future(
            systemd.notify_watchdog()
        )  # referenced, so that it is not garbage-collected
        await self._broadcaster.start()
        await self._reports.start()
        self._listener.start()
        self._announce()

    async def _end(self) -> None:
        # TCP connections are not accepted any more. Meanwhile the last HTTP requests are answered, so that a reverse proxy
        # uses another server.
        await self._listener.stop()
        await asyncio.gather(self._leave(), *([self._http.finish_requests()] if self._http else []))
        await self._listener.end()
        if self._http is not None:
            await self._http.cancel_requests()
        if self._when_cancelled is not None:
            await self._when_cancelled()

    async def _leave(self) -> None:
        with contextlib.suppress(TimeoutError):  # connections that are still open then are aborted
            async with asyncio.timeout(STOP_SECONDS):
                systemd.notify(systemd.STOPPING)
                clients.end_all()
                await self._broadcaster.stop()
                await self._reports.stop()


def _not_usable(error: Exception) -> DatabaseNotUsable:
    why = driver.explain(error).removeprefix("The database cannot be reached: ")
    return DatabaseNotUsable(f"The database {stream_settings().database!r} cannot be used: {why}")


def _check_database() -> None:
    using = stream_settings().database
    try:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT to_regclass('streams_streamposition') IS NOT NULL")
            has_tables = cursor.fetchone()[0]
            if has_tables:
                epochs.current_epoch(cursor)  # a restored database is noticed before any of its positions is sent
    except DjangoError as error:
        raise _not_usable(error) from error
    finally:
        connections[using].close()
    if not has_tables:
        raise DatabaseNotUsable(f"The database {using!r} has not got the tables: run `manage.py migrate` first.")
