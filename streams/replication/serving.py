"""Run a server in this process until it is told to stop: replication alone, or beside HTTP and WebSocket.

For commands; takes over the process (reactor, signals).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from django.db import connections
from django.db.utils import Error as DjangoDatabaseError

from streams.conf import stream_settings
from streams.logs import get_logger
from streams.replication.addresses import Address, bind, refuse_open_network
from streams.replication.broadcaster import process_broadcaster
from streams.replication.errors import ReplicationError
from streams.replication.listener import AsgiServer
from streams.replication.reports import process_reports

__all__ = ["DatabaseNotUsable", "Endpoints", "serve"]

log = get_logger(__name__)


class DatabaseNotUsable(ReplicationError):
    """The database cannot be reached, or has not got our tables."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where to listen, and where it really listens (port 0 takes a free one)."""

    replication: Address
    http: Address | None = None

    @property
    def ready_line(self) -> str:
        """What is printed when both accept."""
        http = f"http={self.http} " if self.http else ""
        return f"ready {http}replication={self.replication}"


def serve(
    application: Callable[..., Awaitable[None]], wanted: Endpoints, when_ready: Callable[[Endpoints], None]
) -> None:
    """Serve until SIGINT or SIGTERM. Raises `BadAddress`, `PortTaken` or `DatabaseNotUsable` before anything runs."""
    given = stream_settings()
    refuse_open_network(wanted.replication, given.plain_networks)
    _check_database()
    replication_socket, replication = bind(wanted.replication)
    http_socket, http = bind(wanted.http) if wanted.http else (None, None)
    endpoints = Endpoints(replication, http)
    served_by = f"{given.instance} {replication}"
    broadcaster, reports = process_broadcaster(served_by), process_reports(served_by)
    server = _Server(
        application,
        http_sockets=[http_socket] if http_socket else [],
        tcp_sockets=[replication_socket],
        tcp_limit=given.connection_limit,
        refusal=b"ERROR too many connections\n",
    )
    reports.more_counts = lambda: {"refused": server.refused}

    async def start() -> None:
        await broadcaster.start()
        await reports.start()

    async def stop() -> None:
        await broadcaster.stop()
        await reports.stop()

    server.when_ready, server.when_stopping = start, stop
    server.tell_ready = lambda: when_ready(endpoints)
    server.run()


class _Server(AsgiServer):
    tell_ready: Callable[[], None]

    def announce(self) -> None:
        self.tell_ready()


def _check_database() -> None:
    using = stream_settings().database
    try:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT to_regclass('streams_streamposition') IS NOT NULL")
            has_tables = cursor.fetchone()[0]
    except DjangoDatabaseError as error:
        raise DatabaseNotUsable(
            f"The database {using!r} cannot be used: {str(error).strip()}. Start it, or correct DATABASE_URL."
        ) from error
    finally:
        connections[using].close()
    if not has_tables:
        raise DatabaseNotUsable(f"The database {using!r} has not got the tables: run `manage.py migrate` first.")
