"""The settings of the stream engine: each field is one setting, with its default, its bounds and its meaning (pure).

No settings are the time between two looks (``SAFETY_SECONDS`` in ``streams/reading/looker.py``), and the number of jobs at
work: each process of ``manage.py runjobs`` carries out one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from streams.declared_settings import setting

_MEGABYTE = 1024 * 1024


def _days_or_never(text: str) -> float | None:
    return None if text == "never" else float(text)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of the stream engine, as ``docs/reference/settings.md`` lists them."""

    writer: str = setting(
        "{host}", site="master", former="REPLSITE_INSTANCE", default_text="`master`; in a project of your own `{host}`"
    )
    """Name of this process as a writer. Several processes may have the same name. ``{host}`` becomes the name of the machine;
    ``{n}`` is left out. ``REPLSITE_INSTANCE``, as it was called, still works."""
    server_name: str = "localhost"
    """Name that the replication server sends to its clients. Users of this server name are this server's own."""
    database: str = setting("default", variable=None, unit="alias")
    """Database that holds the streams. If it is not set, the project's router decides."""
    writers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Stream → names or patterns that may write it. A stream that is not listed may be written by every process."""
    readers: Sequence[str] = setting((), unit="names")
    """Required readers, such as ``search,federation-sender``. One that was never there is ``never seen``; one that no process
    runs is a warning even if it has read everything."""
    send_federation: bool = True
    """This site itself sends to other servers. ``false``: the stream ``federation`` is announced to processes that do."""
    heartbeat_seconds: float = setting(1.0, above=0, variable=None)
    """Time between two heartbeats of a process. After three missed ones it counts as gone."""
    lease_timeout_seconds: float = setting(10.0, above=0, variable=None)
    """How long a change of a room's typing list waits for the lock of this list."""
    failover_keeps_epoch: bool = False
    """The standbys are synchronous, so a promoted one has every commit and tokens stay valid. Otherwise it counts as a
    restored database ([epochs](../explanation/epochs.md))."""
    retired_shown_seconds: float = setting(3600.0, least=0)
    """How long a writer that wrote nothing for an hour is listed on the live page, in ``manage.py streams`` and in metrics."""
    ping_interval_seconds: float = setting(5.0, above=0)
    """A PING is sent when nothing else was sent for this long."""
    ping_timeout_seconds: float = setting(15.0, above=0)
    """A client that sent PING once and then nothing for this long is closed."""
    line_limit_bytes: int = setting(16_384, above=0)
    """Longest line on the wire, line feed not counted. A 1.43 worker takes no longer ones."""
    send_buffer_limit_bytes: int = setting(16 * _MEGABYTE, above=0)
    """A client with more unsent bytes than this is closed as slow."""
    send_stall_limit_seconds: float = setting(30.0, above=0)
    """A client that takes no byte for this long, while bytes wait for it, is closed as slow. One that vanished, or takes
    nothing at all, is gone after twice this time."""
    connection_limit: int = setting(5_000, above=0)
    """Most replication connections of one server. One more replaces the oldest without NAME and REPLICATE, or is refused. With
    few open files allowed, all such limits shrink (``listener.few_descriptors``)."""
    connection_address_limit: int = setting(2_500, least=0)
    """Most replication connections from one address (IPv6: one /64; this machine counts as one). 0: no such limit."""
    close_limit_seconds: float = setting(25.0, above=0)
    """A replication connection that is still open this long after its close was requested is aborted."""
    handshake_limit_seconds: float = setting(10.0, above=0)
    """Longest time for a client to finish its TLS handshake."""
    tls_certificate: str = setting("", unit="PEM file")
    """Certificate (chain) of this process: for its replication port, and for servers that it follows."""
    tls_key: str = setting("", unit="PEM file")
    """Private key of the certificate."""
    tls_client_ca: str = setting("", unit="PEM file")
    """Authorities whose client certificates the replication port accepts. Without it the port speaks plain TCP, even if a
    certificate and a key are set ([TLS](../how-to/tls.md))."""
    wire_rights: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """Name or pattern in a client's certificate → the ``names``, ``streams`` and ``reports`` that it may use
    ([TLS](../how-to/tls.md#rights-of-each-certificate)). Empty: every client has all rights."""
    tls_server_ca: str = setting("", unit="PEM file")
    """Authorities of servers that are followed; empty: those of the system."""
    worker_report_limit: int = setting(100_000, above=0)
    """Most users that may sync over one server, and most reports of one type that wait for the database. One connection may
    use half of what is free. More are dropped and counted."""
    worker_silence_seconds: float = setting(300.0, above=0)
    """Syncing users are forgotten if their connection has sent nothing for this long."""
    user_address_days: float = setting(28.0, above=0)
    """How long the address at which a user was last seen is kept."""
    user_address_limit: int = setting(1_000_000, above=0)
    """Most addresses of users that are kept. New ones above it are dropped and counted. One takes about 0.5 kB of disk, at
    most 3 kB. Of one user the latest 1,000 are kept."""
    redis_password: str = setting("", is_secret=True)
    """Password for Redis servers whose address has none (``follow redis://…``): every user of the machine can read a command
    line."""
    redis_password_file: str = setting("", unit="file")
    """File from which the password is read instead, without the line feed at its end."""
    replication_secret: str = setting("", is_secret=True)
    """Secret for catch-up over HTTP, sent as ``Authorization: Bearer …``. Empty: only this machine and
    ``REPLSITE_PLAIN_NETWORKS`` may ask ([catch-up over HTTP](http-catch-up.md))."""
    recorded_days_kept: float = setting(7.0, above=0, unit="days")
    """Rows of foreign servers (``follow --record``) are removed when they are older."""
    recorded_facts_kept: int = setting(1_000_000, above=0, unit="rows")
    """Most recorded rows that are kept, of all foreign servers together. The oldest are removed first."""

    # --- rooms (``events``, which declares no settings of its own) ---
    retention_default_seconds: float = setting(0.0, least=0)
    """How long rooms without an ``m.room.retention`` of their own keep messages; 0: for ever. Older ones are not shown."""
    retention_shortest_seconds: float = setting(0.0, least=0)
    """Rooms keep messages at least this long, even if their ``max_lifetime`` is shorter."""
    retention_longest_seconds: float = setting(0.0, least=0)
    """Rooms that let messages expire keep them at most this long; 0: as long as their ``max_lifetime`` says."""
    censor_after_days: float | None = setting(7.0, least=0, read=_days_or_never, wanted="a number of days, or never")
    """Time after a redaction until ``manage.py censor`` prunes the event's stored JSON. 0: by the next run; ``never`` (in
    Django None): it stays ([redactions](../explanation/redactions.md))."""
    hot_entries: int = setting(10_000, above=0, unit="entries")
    """Most last changes that [the notifier](../explanation/notifier.md) keeps for each stream and type (rooms, users). Also
    most users whose rooms it keeps."""
    hot_waiter_limit: int = setting(10_000, above=0, unit="callers")
    """Most callers that wait for changes in one process; more are refused with ``TooManyWaiters``."""

    # --- HTTP ---
    http_body_limit_bytes: int = setting(4 * _MEGABYTE, above=0)
    """Longest body of an HTTP request; a longer one gets 413. A piece counts 64 bytes at least. A proxy may allow less."""
    browser_limit: int = setting(2_000, above=0, unit="browsers")
    """Most browsers that one process sends facts to ([push to browsers](../how-to/push-to-browsers.md)). Further ones get 503
    with ``Retry-After``."""
    browser_answer_bytes: int = setting(4 * _MEGABYTE, above=0)
    """A connection of a browser ends after this many bytes, so no more than this can wait for a slow one. The browser goes on
    from its last token."""
    browser_answer_seconds: float = setting(300.0, above=0)
    """A connection of a browser ends after this time. The browser connects again, and ``allow`` is called again."""

    # --- the machine: service manager, proxies, networks ---
    notify_socket: str = setting("", variable="NOTIFY_SOCKET")
    """Socket of the service manager for messages such as ``READY=1``; systemd sets the variable."""
    watchdog_seconds: float = setting(
        0.0, least=0, variable="WATCHDOG_USEC", read=lambda text: int(text) / 1e6, wanted="a whole number"
    )
    """The service manager ends a process without a sign of life for this long; 0: it does not check. systemd sets the
    variable, in microseconds."""
    proxy_networks: Sequence[str] = setting((), unit="networks")
    """Reverse proxies on other machines whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are trusted, as those of this
    machine are ([run in production](../how-to/run-in-production.md))."""
    plain_networks: Sequence[str] = setting((), unit="networks")
    """Networks besides loopback whose clients may speak plain text to the replication port, such as
    ``10.1.2.0/24,10.9.0.0/16``."""
