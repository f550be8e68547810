"""Runs a server in this process until it is stopped: replication alone, or together with HTTP.

Used by management commands. The server runs Twisted's reactor, and handles the signals of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from django.db import connections
from django.db.utils import Error as DjangoDatabaseError

from streams import epochs
from streams.browsers import clients
from streams.conf import StreamSettings, stream_settings
from streams.core.names import name_without_number
from streams.db import driver
from streams.replication.errors import ReplicationError
from streams.replication.protocol.access import Access, networks_of
from streams.replication.protocol.rights import RightsTable
from streams.replication.server.broadcaster import process_broadcaster
from streams.replication.server.worker_reports import process_reports
from streams.replication.transport.addresses import Address, bind, refuse_open_network
from streams.replication.transport.descriptors import raise_descriptor_limit
from streams.replication.transport.http_limits import HttpBounds
from streams.replication.transport.tcp_scope import AsgiServer, ListenerLimits
from streams.replication.transport.tls import Certificates, TlsFiles
from streams.runtime import systemd
from streams.runtime.logs import get_logger

__all__ = ["DatabaseNotUsable", "Endpoints", "serve"]

log = get_logger(__name__)


class DatabaseNotUsable(ReplicationError):
    """A database that cannot be reached, or that does not have our tables."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses on which the server listens.

    Port 0 selects a free port. The endpoints that `serve` passes to ``when_ready`` have the selected ports.
    """

    replication: Address
    http: Address | None = None

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
    _check_database()
    replication_socket, replication = bind(wanted.replication)
    http_socket, http = bind(wanted.http) if wanted.http else (None, None)
    endpoints = Endpoints(replication, http)
    server = _Server(
        application,
        http_sockets=[http_socket] if http_socket else [],
        tcp_sockets=[replication_socket],
        limits=raise_descriptor_limit(_limits(given)),
        access=access,
        certificates=certificates,
    )
    _attend(server, f"{name_without_number(given.instance)} {replication}")
    server.announce_ready = lambda: when_ready(endpoints)
    server.when_cancelled = when_cancelled
    try:
        server.run()
    except driver.DatabaseError as error:  # it was lost between the check and the start
        raise _not_usable(error) from error


def _limits(given: StreamSettings) -> ListenerLimits:
    return ListenerLimits(
        tcp_connections=given.connection_limit,
        tcp_of_address=given.connection_address_limit,
        handshake_seconds=given.handshake_limit_seconds,
        http=HttpBounds(
            connections=given.http_connection_limit,
            of_address=given.http_address_limit,
            body_bytes=given.http_body_limit_bytes,
            buffer_bytes=given.http_buffer_limit_bytes,
            head_seconds=given.http_head_limit_seconds,
            body_seconds=given.http_body_limit_seconds,
            stall_seconds=given.send_stall_limit_seconds,
            proxies=networks_of(given.proxy_networks, "REPLSITE_PROXY_NETWORKS"),
        ),
    )


def _attend(server: AsgiServer, served_by: str) -> None:
    """Makes the server start and stop the broadcaster and worker reports of the process."""
    broadcaster, reports = process_broadcaster(served_by), process_reports(served_by)
    reports.more_counts = lambda: {"refused": server.refusals + server.http_limits.refused}

    signs: list[asyncio.Future[None]] = []  # referenced, so that the task is not garbage-collected

    async def start() -> None:
        signs.append(asyncio.ensure_future(systemd.notify_watchdog()))
        await broadcaster.start()
        await reports.start()

    async def stop() -> None:
        systemd.notify(systemd.STOPPING)
        clients.end_all()
        await broadcaster.stop()
        await reports.stop()

    server.when_ready, server.when_stopping = start, stop


class _Server(AsgiServer):
    announce_ready: Callable[[], None]

    def announce(self) -> None:
        self.announce_ready()


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
    except DjangoDatabaseError as error:
        raise _not_usable(error) from error
    finally:
        connections[using].close()
    if not has_tables:
        raise DatabaseNotUsable(f"The database {using!r} has not got the tables: run `manage.py migrate` first.")
