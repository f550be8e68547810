"""Makes the connector to a server from the arguments of a command line: ``tcp://``, ``tls://`` or ``redis://``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from streams.conf import stream_settings
from streams.replication.client.links import Connector, TcpConnector
from streams.replication.errors import BadAddress, UnsendableCommand
from streams.replication.protocol.commands import Name, Server, format_line
from streams.replication.protocol.connection import Limits
from streams.replication.transport.addresses import Address, RedisAddress, missing_redis_hint, parse_redis
from streams.replication.transport.tls import TLS_SCHEMES, TlsFiles, client_context

__all__ = ["check_sendable", "connector_to", "name_of_server", "redis_address"]


def redis_address(text: str) -> RedisAddress | None:
    """Returns the address of a Redis server, or None for an address of another kind. Raises `BadAddress`."""
    if not text.startswith(("redis://", "rediss://")):
        return None
    if missing_redis_hint():
        raise BadAddress(missing_redis_hint())
    return parse_redis(text)


def name_of_server(given: str | None, redis: RedisAddress | None) -> str | None:
    """Returns the server's name. ``given`` is the value of ``--server-name``, and ``redis`` the address of Redis.

    Without ``--server-name``, returns the name of the Redis channel, because a homeserver's channel has the
    homeserver's name. Raises `BadAddress` if the channel has another name than ``--server-name``. Returns None if
    there is neither a channel nor ``--server-name``.
    """
    if redis and redis.channel and given not in (None, redis.channel):
        raise BadAddress(
            f"The channel is the server's name; --server-name {given} and channel={redis.channel} are two."
        )
    return given or (redis.channel if redis else None)


def check_sendable(name: str, server_name: str) -> None:
    """Raises `BadAddress` if a line of the protocol cannot carry our name or the server's."""
    for option, command in (("--name", Name(name)), ("--server-name", Server(server_name))):
        try:
            format_line(command, stream_settings().line_limit_bytes)
        except UnsendableCommand as error:
            raise BadAddress(f"{option}: no line can carry this name ({error}).") from error


def connector_to(
    options: Mapping[str, Any],
    redis: RedisAddress | None,
    name: str,
    server_name: str,
    streams: Collection[str] = (),
) -> Connector:
    """Returns the connector to ``options["address"]``, with the options of ``add_client_arguments``.

    Raises `BadAddress` and `BadCertificate`.
    """
    if redis is not None:
        from streams.replication.redis.subscriber import RedisConnector  # noqa: PLC0415 - needs the extra

        return RedisConnector(redis, server_name, name)
    conf, address = stream_settings(), options["address"]
    limits = Limits(conf.ping_interval_seconds, conf.ping_timeout_seconds, line_bytes=conf.line_limit_bytes)
    scheme = address.partition("://")[0]
    if scheme not in TLS_SCHEMES:
        return TcpConnector(Address.parse(address, scheme="tcp"), name, server_name, limits, streams=streams)
    context = client_context(TlsFiles.of_client(conf, dict(options)))
    return TcpConnector(Address.parse(address, scheme=scheme), name, server_name, limits, context, streams=streams)
