"""Parsing of addresses and Redis URLs, and the opening of listening sockets.

A replication port without TLS has neither encryption nor passwords, and pages are for a reverse proxy. So
`refuse_open_network` and `refuse_strangers` restrict the addresses on which they may listen. Error messages never
contain a password.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from streams.conf import redis_password
from streams.replication.errors import BadAddress, PortTaken
from streams.replication.protocol.access import networks_of
from streams.runtime.masking import masked, masked_command

#: Connections that the kernel keeps until the process accepts them. Of a thousand followers that connect at once after a
#: restart, those for which there is no room hear nothing for a minute. Linux allows at most ``net.core.somaxconn``.
BACKLOG = 2_048


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, scheme: str = "") -> Address:
        """Parses ``HOST:PORT``. If ``scheme`` is given, also parses ``SCHEME://HOST:PORT``. An IPv6 host needs brackets.

        Raises `BadAddress` for any other text, and for a host that IDNA cannot encode.
        """
        form = f"{scheme}://HOST:PORT" if scheme else "HOST:PORT"
        try:
            parts = urlsplit(text if scheme else f"//{text}")
            port = parts.port
            (parts.hostname or "").encode("idna")  # a later lookup does the same, but raises an error of another type
        except ValueError as error:
            raise BadAddress(f"{masked(text)!r} is no address ({masked(str(error))}): write {form}.") from error
        if parts.scheme != scheme or not parts.hostname or port is None or parts.path.strip("/") or "@" in parts.netloc:
            raise BadAddress(f"{masked(text)!r} is no address: write {form}, for example {form[:-9]}127.0.0.1:9092.")
        return cls(parts.hostname, port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SocketFile:
    """A socket in the file system, through which programs of this machine connect."""

    path: str

    @classmethod
    def parse(cls, text: str) -> SocketFile | Address:
        """Parses ``unix:PATH``, or an `Address`. Raises `BadAddress` for any other text."""
        scheme, _, path = text.partition(":")
        if scheme != "unix":
            return Address.parse(text)
        if not path.startswith("/"):
            raise BadAddress(f"{text!r} is no socket: write unix:/run/replsite/1.sock.")
        return cls(path)

    def __str__(self) -> str:
        return f"unix:{self.path}"


_REDIS_FORM = "redis://[USER:PASSWORD@]HOST:PORT[/DB][?channel=NAME]"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A Redis server and the homeserver's channel (empty if no channel is given). ``str(address)`` omits user and password."""

    host: str
    port: int
    database: int = 0
    channel: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    is_tls: bool = False

    @classmethod
    def parse(cls, text: str, password: str = "") -> RedisAddress:
        """Parses ``redis://…``, or ``rediss://…`` for TLS. Defaults are port 6379 and database 0.

        If ``text`` has no password, the argument ``password`` is used. Raises `BadAddress`, whose message has no
        password.
        """
        try:
            parts = urlsplit(text)
            port = parts.port or 6379
            database = int(parts.path.strip("/") or "0")
            query = parse_qs(parts.query, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise BadAddress(f"This is no Redis address ({error}): write {_REDIS_FORM}.") from error
        channels = query.pop("channel", [""])
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or query or len(channels) > 1 or database < 0:
            raise BadAddress(f"This is no Redis address: write {_REDIS_FORM}, or rediss://… for TLS.")
        user, password = unquote(parts.username or ""), unquote(parts.password or "") or password
        return cls(parts.hostname, port, database, channels[0], user, password, parts.scheme == "rediss")

    def __str__(self) -> str:
        channel = f"?channel={self.channel}" if self.channel else ""
        return f"{'rediss' if self.is_tls else 'redis'}://{Address(self.host, self.port)}/{self.database}{channel}"


def parse_redis(text: str) -> RedisAddress:
    """Parses a Redis address. If the address has no password, uses the password from the settings.

    Raises `BadAddress`, also if ``REPLSITE_REDIS_PASSWORD_FILE`` cannot be read.
    """
    try:
        return RedisAddress.parse(text, redis_password())
    except OSError as error:
        raise BadAddress(f"REPLSITE_REDIS_PASSWORD_FILE cannot be read: {error}.") from error


def missing_redis_hint() -> str:
    return "" if find_spec("redis") else "Redis needs an extra: pip install 'replsite[redis]'."


def bind(address: Address, *, backlog: int = BACKLOG) -> tuple[socket.socket, Address]:
    """Returns (listening non-blocking socket, address on which it listens). Port 0 selects a free port.

    Raises `PortTaken`, with the process that holds the port if it can be determined. Raises `BadAddress` for other errors.
    """
    family, kind, protocol, _, where = _resolve(address)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(backlog)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"Cannot listen on {address}: the port is in use{holder_of_port(address.port)}.") from error
        raise BadAddress(f"Cannot listen on {address}: {os.strerror(error.errno or 0)}.") from error
    bound.setblocking(False)
    host, port = bound.getsockname()[:2]
    return bound, Address(host, port)


def bind_file(file: SocketFile, *, backlog: int = BACKLOG) -> socket.socket:
    """Returns a listening non-blocking socket at a path, which every user may open who may enter the folder.

    A file that a killed process has left is replaced. Raises `PortTaken` if a process listens there, `BadAddress` for other
    errors.
    """
    path = Path(file.path)
    bound = socket.socket(socket.AF_UNIX)
    try:
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), socket.socket(socket.AF_UNIX) as other:
            other.connect(file.path)
            raise PortTaken(f"Cannot listen on {file}: another process does.")
        if path.is_socket():
            path.unlink()
        bound.bind(file.path)
        path.chmod(0o666)
        bound.listen(backlog)
    except OSError as error:
        bound.close()
        raise BadAddress(f"Cannot listen on {file}: {error.strerror or error}.") from error
    bound.setblocking(False)
    return bound


def _resolve(address: Address) -> list[Any]:
    try:
        return socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadAddress(f"Cannot listen on {address}: {error.strerror or error}.") from error


def missing_server_hint() -> str:
    return "" if find_spec("daphne") else "A server needs an extra: pip install 'replsite[site]'."


def holder_of_port(port: int) -> str:
    """Returns text such as `` by process 12 (python manage.py serve)``, or an empty text if the process cannot be determined."""
    if find_spec("psutil") is None:  # of the extra `site`
        return ""
    import psutil  # noqa: PLC0415 - only after a failure

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                command = masked_command(psutil.Process(connection.pid).cmdline())
                return f" by process {connection.pid} ({command[:200]})"
    except (psutil.Error, OSError):
        return ""
    return ""


def refuse_open_network(address: Address, networks: Sequence[str]) -> None:
    """Raises `BadAddress` if a port without TLS would listen outside loopback and the given networks.

    All IP addresses to which the host resolves are checked. An unspecified address (``0.0.0.0``, ``::``) is allowed if
    at least one network is given, because clients from other networks are refused when they connect.
    """
    allowed = networks_of(networks)
    for *_, where in _resolve(address):
        host = ipaddress.ip_address(str(where[0]).partition("%")[0])
        is_everywhere = host.is_unspecified and bool(allowed)
        if not (host.is_loopback or is_everywhere or any(host in network for network in allowed)):
            raise BadAddress(
                "Without TLS the replication port speaks plain text without passwords, so it listens on loopback only; "
                f"{address} is {host}. Give it --tls-certificate, --tls-key and --tls-client-ca, or name the network that "
                "may be used without TLS in REPLSITE_PLAIN_NETWORKS, e.g. 10.1.2.0/24."
            )


def refuse_strangers(address: Address) -> None:
    """Raises `BadAddress` if pages would be served to other machines directly, and not through a proxy of this machine."""
    for *_, where in _resolve(address):
        host = ipaddress.ip_address(str(where[0]).partition("%")[0])
        if not host.is_loopback:
            raise BadAddress(
                f"{address} can be reached from other machines, and pages are for a reverse proxy, which bounds what its clients "
                "may do. Either give --http 127.0.0.1:8000 or unix:/run/replsite/1.sock, with a proxy on this machine such as "
                "docs/deployment/nginx; or give --behind-proxy, if nobody but your proxy reaches this address."
            )
