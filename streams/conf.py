"""The settings of the stream engine as one typed object.

Values come from Django settings named ``REPLSITE_*``; a site that does not set a value gets the default of this module.
``streams.checks`` reports values that cannot work.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from django.apps import apps
from django.conf import settings
from django.core.signals import setting_changed
from django.db import router

__all__ = ["StreamSettings", "on_database", "on_this_host", "redis_password", "stream_settings"]

#: The most characters of a machine's name that become part of an instance name.
_LONGEST_HOST = 60


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of the stream engine; each is documented in ``docs/reference/settings.md``."""

    instance: str = "{host}-{n}"
    """Name of this process as a writer. ``{n}`` becomes the lowest free number, ``{host}`` the name of the machine."""
    server_name: str = "localhost"
    """Name that the replication server sends to its clients."""
    database: str = "default"
    """Django's alias of the database that holds the streams. If it is not set, the project's router decides."""
    writers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Stream -> names or patterns that may write it. A stream that is not listed may be written by every instance."""
    readers: Sequence[str] = ()
    """Names of required readers. A required reader that is not seen is reported as missing."""
    send_federation: bool = True
    """True: this site itself sends to other servers. False: other processes do; ``federation`` is announced to them."""
    announce_interval_seconds: float = 0.05
    """Shortest time between two announcements by which an idle writer follows the positions of other writers."""
    heartbeat_seconds: float = 1.0
    """Time between two heartbeats of a process. After three missed ones it counts as gone."""
    lease_timeout_seconds: float = 10.0
    """How long a starting writer waits for open transactions of an earlier process with its name."""
    failover_keeps_epoch: bool = False
    """A promoted standby has every commit (synchronous replication), so its database does not count as restored."""
    retired_shown_seconds: float = 3600.0
    """Time for which a retired writer is listed. The writer's row stays, since tokens name the writer by its key."""
    ping_interval_seconds: float = 5.0
    """A PING is sent when nothing else was sent for this long."""
    ping_timeout_seconds: float = 15.0
    """A client that sent PING once and then nothing for this long is closed."""
    line_limit_bytes: int = 16_384
    """Longest line on the wire, line feed not counted."""
    send_buffer_limit_bytes: int = 16 * 1024 * 1024
    """A client with more unsent bytes than this is closed as slow."""
    send_stall_limit_seconds: float = 30.0
    """A client that takes no byte for this long, while bytes wait for it, is closed as slow."""
    connection_limit: int = 5_000
    """Most replication connections that one server takes."""
    connection_address_limit: int = 2_500
    """Most replication connections from one address; 0: no limit for single addresses."""
    close_limit_seconds: float = 25.0
    """A replication connection that is still open this long after its close was requested is aborted."""
    http_connection_limit: int = 2_500
    """Most HTTP and WebSocket connections that one server takes."""
    http_address_limit: int = 500
    """Most HTTP connections from one address that is not a proxy's; 0: no limit for single addresses."""
    http_head_limit_seconds: float = 10.0
    """Longest time for the head of an HTTP request to arrive, from its first byte to its last."""
    http_body_limit_bytes: int = 4 * 1024 * 1024
    """Longest body of an HTTP request."""
    http_body_limit_seconds: float = 60.0
    """Longest time for the body of an HTTP request to arrive."""
    http_buffer_limit_bytes: int = 256 * 1024 * 1024
    """Most bytes of all HTTP clients together, in request bodies and in answers that they did not take yet."""
    websocket_buffer_limit_bytes: int = 4 * 1024 * 1024
    """A WebSocket client with more unsent bytes than this is disconnected."""
    handshake_limit_seconds: float = 10.0
    """Longest time for a client to finish its TLS handshake."""
    tls_certificate: str = ""
    """Certificate (chain) of this process as PEM file: for its replication port, and for servers that it follows."""
    tls_key: str = ""
    """Private key of the certificate as PEM file."""
    tls_client_ca: str = ""
    """PEM file of the authorities whose client certificates the replication port accepts."""
    wire_rights: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """Name or pattern of a client's certificate -> its ``names``, ``streams`` and ``reports``. Empty: all have all rights."""
    tls_server_ca: str = ""
    """PEM file of the authorities of servers that are followed; empty: those of the system."""
    worker_report_limit: int = 100_000
    """Most users that may sync over one server, and most reports of one type that wait for the database."""
    worker_silence_seconds: float = 300.0
    """Syncing users are forgotten if their connection has sent nothing for this long."""
    user_address_days: float = 28.0
    """Days for which the address at which a user was last seen is kept."""
    user_address_limit: int = 1_000_000
    """Most addresses of users that are kept. New ones above it are dropped and counted."""
    redis_password: str = field(default="", repr=False)
    """Password for Redis servers whose address has none: every user of the machine can read a command line."""
    redis_password_file: str = ""
    """File from which the password is read instead, without the line feed at its end."""
    replication_secret: str = field(default="", repr=False)
    """Secret for catch-up over HTTP; empty: only loopback and ``plain_networks`` may request it."""
    recorded_days_kept: float = 7.0
    """Recorded rows of foreign servers are removed when they are older."""
    recorded_facts_kept: int = 1_000_000
    """Most recorded rows that are kept, of all foreign servers together; the oldest are removed first."""
    retention_default_seconds: float = 0.0
    """Time for which rooms without a policy of their own keep messages; 0: for ever."""
    retention_shortest_seconds: float = 0.0
    """Rooms keep messages at least this long, even if their policy is shorter."""
    retention_longest_seconds: float = 0.0
    """Rooms that let messages expire keep them at most this long; 0: as long as their policy says."""
    censor_after_days: float | None = 7.0
    """Days after which a redacted event's stored JSON is replaced by its pruned form; 0: by the next run; None: never."""
    hot_entries: int = 10_000
    """Most last changes that the notifier keeps for each stream and type (rooms, users). Also most users with rooms."""
    hot_waiter_limit: int = 10_000
    """Most callers that wait for changes in one process."""
    browser_limit: int = 2_000
    """Most browsers that one process sends facts to; further ones get status 503."""
    browser_answer_bytes: int = 4 * 1024 * 1024
    """A connection of a browser ends after this many bytes. The browser goes on from its last token."""
    browser_answer_seconds: float = 300.0
    """A connection of a browser ends after this time. The browser connects again, and its permission is checked again."""
    notify_socket: str = ""
    """Socket of the service manager for messages such as ``READY=1``; empty: there is none."""
    watchdog_seconds: float = 0.0
    """The service manager ends a process without a sign of life for this long; 0: it does not check."""
    proxy_networks: Sequence[str] = ()
    """Networks of reverse proxies, whose connections carry requests of many clients."""
    plain_networks: Sequence[str] = ()
    """Networks besides loopback in which the replication port may listen without TLS, e.g. ``10.1.2.0/24``."""


def redis_password() -> str:
    """Returns the password for Redis from the settings; empty if no password is set.

    Raises ``OSError`` for an unreadable file.
    """
    conf = stream_settings()
    if conf.redis_password or not conf.redis_password_file:
        return conf.redis_password
    return Path(conf.redis_password_file).read_text().rstrip("\r\n")


def on_this_host(pattern: str) -> str:
    """Returns the pattern with ``{host}`` replaced by the first part of this machine's name."""
    if not isinstance(pattern, str) or "{host}" not in pattern:
        return pattern
    short = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname().partition(".")[0])[:_LONGEST_HOST]
    return pattern.replace("{host}", short or "host")


_cached: StreamSettings | None = None
_chosen: str | None = None


def stream_settings() -> StreamSettings:
    """Returns the settings. They are read once, and again after Django's ``override_settings``."""
    global _cached  # noqa: PLW0603 - one cache for the process
    if _cached is None:
        given = {f.name: f"REPLSITE_{f.name.upper()}" for f in fields(StreamSettings)}
        found = StreamSettings(**{n: getattr(settings, s) for n, s in given.items() if hasattr(settings, s)})
        found = replace(found, instance=on_this_host(found.instance), database=_alias(found.database))
        if not apps.models_ready:  # the router cannot be asked yet
            return found
        _cached = found
    return _cached


def _alias(configured: str) -> str:
    """Returns the alias of the streams' database.

    Inside of ``on_database``, this is the alias that was given to ``on_database``. Otherwise it is the router's choice
    if the site has a router and does not set ``REPLSITE_DATABASE``, and else ``configured``.
    """
    if _chosen is not None:
        return _chosen
    is_routed = settings.DATABASE_ROUTERS and apps.models_ready and apps.is_installed("streams")
    if hasattr(settings, "REPLSITE_DATABASE") or not is_routed:
        return configured
    return router.db_for_write(apps.get_model("streams", "StreamPosition"))


@contextmanager
def on_database(alias: str) -> Iterator[None]:
    """Context manager inside which this process uses the streams of another database. Commands use it."""
    global _cached, _chosen
    before, _chosen, _cached = _chosen, alias, None
    try:
        yield
    finally:
        _chosen, _cached = before, None


def _forget(setting: str, **_: object) -> None:
    """Drops the cached settings after a test changed one of them."""
    global _cached  # noqa: PLW0603
    if setting.startswith("REPLSITE_") or setting == "DATABASE_ROUTERS":
        _cached = None


setting_changed.connect(_forget, dispatch_uid="streams.conf")
