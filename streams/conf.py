"""The settings of the stream engine as one typed object.

Values come from Django settings named ``REPLSITE_*``; a site that does not set one gets the default here.
``streams.checks`` reports values that cannot work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from django.conf import settings
from django.core.signals import setting_changed

__all__ = ["StreamSettings", "redis_password", "stream_settings"]


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of the rooms' engine; each is documented in ``docs/reference/settings.md``."""

    instance: str = "master"
    """Name of this process as a writer; a pattern such as ``web-{n}`` takes the lowest free number."""
    server_name: str = "localhost"
    """Name that the replication server introduces itself with."""
    database: str = "default"
    """Django's alias of the database that holds the streams."""
    writers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Stream -> names or patterns that may write it; a stream that is not named may be written by every instance."""
    readers: Sequence[str] = ()
    """Names of readers that have to be there: one that nobody hears of is told of as missing."""
    send_federation: bool = True
    """This site sends to other servers by itself; if not, the stream ``federation`` is announced to those who do."""
    announce_interval_seconds: float = 0.05
    """An idle writer tells how far others got no more often than this."""
    heartbeat_seconds: float = 1.0
    """How often a process shows that it lives; three missed beats mean gone."""
    lease_timeout_seconds: float = 10.0
    """How long a starting writer waits for open transactions of an earlier process with its name."""
    failover_keeps_epoch: bool = False
    """A promoted standby has everything that was committed (synchronous replication), so its database is no restored one."""
    retired_shown_seconds: float = 3600.0
    """A retired writer is listed for so long; its row stays, since tokens name it by its key."""
    ping_interval_seconds: float = 5.0
    """A PING is sent when nothing else was sent for this long."""
    ping_timeout_seconds: float = 15.0
    """A peer that sent PING once and then nothing for this long is closed."""
    line_limit_bytes: int = 16_384
    """Longest line on the wire, line feed not counted."""
    send_buffer_limit_bytes: int = 16 * 1024 * 1024
    """A peer with more unsent bytes than this is closed as slow."""
    send_stall_limit_seconds: float = 30.0
    """A peer that takes no byte for this long while some wait is closed as slow."""
    connection_limit: int = 5_000
    """Most replication connections that one server takes."""
    connection_address_limit: int = 2_500
    """Most of them from one address; 0: as many as there may be."""
    close_limit_seconds: float = 25.0
    """A replication connection that is still there this long after a close was asked for is aborted."""
    http_connection_limit: int = 2_000
    """Most HTTP and WebSocket connections that one server takes."""
    http_address_limit: int = 500
    """Most of them from one address, but for proxies; 0: as many as there may be."""
    http_head_limit_seconds: float = 10.0
    """How long the head of an HTTP request may take to come, from its first byte to its last."""
    http_body_limit_bytes: int = 4 * 1024 * 1024
    """Longest body of an HTTP request."""
    http_body_limit_seconds: float = 60.0
    """How long the body of an HTTP request may take to come."""
    http_buffer_limit_bytes: int = 256 * 1024 * 1024
    """Bodies of requests and answers that wait for HTTP clients, of all together."""
    websocket_buffer_limit_bytes: int = 4 * 1024 * 1024
    """A WebSocket's client with more unsent bytes than this is cut off."""
    handshake_limit_seconds: float = 10.0
    """How long a client may take to make a TLS connection."""
    tls_certificate: str = ""
    """Certificate (chain) of this process as PEM file: for its replication port, and for servers that it follows."""
    tls_key: str = ""
    """Private key of the certificate as PEM file."""
    tls_client_ca: str = ""
    """PEM file of the authorities whose client certificates the replication port accepts."""
    tls_server_ca: str = ""
    """PEM file of the authorities of servers that are followed; empty: those of the system."""
    worker_report_limit: int = 100_000
    """Most users that may sync over one server, and most reports of one kind that wait for the database."""
    worker_silence_seconds: float = 300.0
    """Users that sync over a connection without news for this long are forgotten."""
    user_address_days: float = 28.0
    """How long it is kept from where a user was last seen."""
    redis_password: str = field(default="", repr=False)
    """Of Redis servers whose address has none: an address is on the command line, where every user of the machine can read it."""
    redis_password_file: str = ""
    """Where it is read from instead; the line feed at the end does not count."""
    replication_secret: str = field(default="", repr=False)
    """Whoever asks for missed facts over HTTP has to know it; empty: only loopback and ``plain_networks`` may ask."""
    replication_hosts: Sequence[str] = ()
    """Names of hosts besides those of the site that requests for missed facts may be for: workers call it ``master``."""
    redis_synapse_version: str = "1.43"
    """Version of the Synapse workers that hear us on Redis: from 1.157 on they get the streams and rows of that version."""
    recorded_days_kept: float = 7.0
    """Recorded rows of foreign servers are removed when they are older."""
    recorded_facts_kept: int = 1_000_000
    """So many recorded rows are kept, of all foreign servers together; the oldest go first."""
    retention_default_seconds: float = 0.0
    """How long rooms without a policy of their own keep messages; 0: for ever."""
    retention_shortest_seconds: float = 0.0
    """Rooms keep messages at least so long, whatever their policy says."""
    retention_longest_seconds: float = 0.0
    """Rooms that let messages expire keep them no longer than this; 0: as long as their policy says."""
    censor_after_days: float | None = 7.0
    """Stored JSON of a redacted event is replaced by its pruned form after so long; 0: by the next run; None: never."""
    feed_entries: int = 5_000
    """Most entries of a user's feed; when there are more the oldest are cut."""
    hot_entries: int = 10_000
    """Last changes of one kind that a process remembers of a stream, and users whose rooms it does."""
    hot_waiter_limit: int = 10_000
    """Most callers that wait for news in one process."""
    notify_socket: str = ""
    """Socket of the service manager that wants to be told when this process is ready; empty: there is none."""
    watchdog_seconds: float = 0.0
    """The service manager gives a process up that gives no sign of life for so long; 0: it does not look."""
    proxy_networks: Sequence[str] = ()
    """Networks of reverse proxies: each speaks for many clients."""
    plain_networks: Sequence[str] = ()
    """Networks besides loopback in which the replication port may listen without TLS, e.g. ``10.1.2.0/24``."""


def redis_password() -> str:
    """The password for Redis by the settings; empty: there is none. Raises ``OSError`` for a file that cannot be read."""
    conf = stream_settings()
    if conf.redis_password or not conf.redis_password_file:
        return conf.redis_password
    return Path(conf.redis_password_file).read_text().rstrip("\r\n")


_cached: StreamSettings | None = None


def stream_settings() -> StreamSettings:
    """The settings in force, read once and again after Django's ``override_settings``."""
    global _cached  # noqa: PLW0603 - one cache for the process
    if _cached is None:
        given = {f.name: f"REPLSITE_{f.name.upper()}" for f in fields(StreamSettings)}
        _cached = StreamSettings(**{n: getattr(settings, s) for n, s in given.items() if hasattr(settings, s)})
    return _cached


def _forget(setting: str, **_: object) -> None:
    """Read the settings again after a test changed one."""
    global _cached  # noqa: PLW0603
    if setting.startswith("REPLSITE_"):
        _cached = None


setting_changed.connect(_forget, dispatch_uid="streams.conf")
