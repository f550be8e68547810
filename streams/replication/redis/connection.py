"""Connections to Redis that never reconnect by themselves, so that the caller knows when messages may be missing.

The publish/subscribe object of the Python package ``redis`` reconnects and subscribes again without notice. In this
module a lost connection is an error, and the caller reconnects and asks for positions. Needs the extra ``redis``.
"""

from __future__ import annotations

import math
from typing import Any

from redis import exceptions
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from streams.replication.client.links import CONNECT_TIMEOUT_SECONDS
from streams.replication.errors import RedisRefused
from streams.replication.transport.addresses import RedisAddress

WRITE_TIMEOUT_SECONDS = 10.0


class RedisConnection:
    """A connection to Redis.

    Its methods raise ``ConnectionError`` (an ``OSError``) if the connection is lost, and `RedisRefused` if the server
    refuses a command.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def send(self, *words: str | bytes) -> None:
        """Sends one command, and waits until the transport has accepted it. The caller must then read Redis's answer."""
        try:
            await self._connection.send_command(*words, check_health=False)
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            raise ConnectionError(f"the connection to Redis is lost: {error}") from error

    async def receive(self, timeout_seconds: float = math.inf) -> Any:
        """Returns the next answer or message. Raises ``ConnectionError`` if nothing arrives within ``timeout_seconds``."""
        try:
            answer = await self._connection.read_response(disable_decoding=True, timeout=timeout_seconds)
        except (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.InvalidResponse) as error:
            raise ConnectionError(f"the connection to Redis is lost: {error}") from error
        except exceptions.ResponseError as error:
            raise RedisRefused(f"Redis refuses: {error}.") from error
        if isinstance(answer, exceptions.ResponseError):
            raise RedisRefused(f"Redis refuses: {answer}.")
        return answer

    async def ask(self, *words: str | bytes) -> Any:
        await self.send(*words)
        return await self.receive(CONNECT_TIMEOUT_SECONDS)

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)


async def open_redis(address: RedisAddress, name: str) -> RedisConnection:
    """Returns a new connection, shown to Redis under ``name``. Raises ``ConnectionError`` or `RedisRefused`."""
    kind = SSLConnection if address.is_tls else Connection
    connection = kind(
        host=address.host,
        port=address.port,
        db=address.database,
        username=address.user or None,
        password=address.password or None,
        client_name="".join(c if c.isalnum() or c in "-_.:" else "-" for c in name)[:60] or None,
        socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
        socket_timeout=WRITE_TIMEOUT_SECONDS,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    try:
        await connection.connect()
    except (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.ResponseError) as error:
        await connection.disconnect(nowait=True)
        raise RedisRefused(
            f"Redis at {address} refuses us: {error}. Correct user, password or database number."
        ) from error
    except (exceptions.RedisError, OSError) as error:
        await connection.disconnect(nowait=True)
        raise ConnectionError(f"Redis at {address} cannot be reached: {error}") from error
    return RedisConnection(connection)
