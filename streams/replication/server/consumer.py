"""The Channels consumer of one replication connection. It reads the client's input, and ends with the connection.

Lines for many clients do not pass through the consumer: the broadcaster writes them directly to the transport. A
worker's reports are passed to ``worker_reports``. The consumer uses neither the database nor other processes. So no
message needs a change of thread or a channel layer. The consumer runs on the scope ``tcp``
(``docs/reference/tcp-scope.md``), with its extension ``tcp.transport``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from channels.consumer import AsyncConsumer
from channels.exceptions import StopConsumer
from structlog.contextvars import bind_contextvars

from streams.replication.common.second_total import SecondTotal
from streams.replication.protocol.commands import Command, Error, FederationAck, Name, Replicate
from streams.replication.protocol.connection import CloseReason
from streams.replication.server.broadcaster import Broadcaster, process_broadcaster
from streams.replication.server.client import ReplicationClient
from streams.replication.server.worker_reports import WorkerReports, process_reports
from streams.replication.transport.tcp_scope import MADE_ROOM
from streams.runtime.logs import get_logger
from streams.runtime.text import safe_text

__all__ = ["ReplicationConsumer"]

log = get_logger(__name__)
Message = dict[str, Any]

#: Most bytes of a client's input that are handled at a time, before other clients have their turn.
SLICE_BYTES = 1024
#: A client that sends more than this within a second waits for its turn. In each iteration of the loop, one slice of
#: one such client is handled. A worker that only sends PING and its reports stays below the limit. If such workers
#: together use up the budget of `FreeTime`, they wait for their turn as well.
FREE_BYTES = 2 * SLICE_BYTES


class ReplicationConsumer(AsyncConsumer):
    """The consumer of one client's connection.

    If no ``broadcaster`` is given, the consumer uses the broadcaster of the process. The server must start this
    broadcaster.
    """

    def __init__(self, broadcaster: Broadcaster | None = None, reports: WorkerReports | None = None) -> None:
        self._broadcaster = broadcaster or process_broadcaster()
        given = WorkerReports(broadcaster) if broadcaster is not None else None
        self._reports = reports or given or process_reports()
        self._client: ReplicationClient | None = None
        self._has_logged_error = False
        self._name: str | None = None
        self._received = SecondTotal()

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Handles the ASGI messages of the connection until it ends. Unlike the base class, uses no channel layer."""
        self.scope = scope
        self.base_send = send
        try:
            while True:
                await self.dispatch(await receive())
        except StopConsumer:
            return
        except Exception:
            if self._client is not None:
                self._client.close(CloseReason.FAILED, "internal error")
            raise
        finally:
            self._leave()

    async def dispatch(self, message: Message) -> None:
        """Calls the handler of an ASGI message. Raises ``ValueError`` for a message that does not belong to the scope ``tcp``.

        Replaces the method of the base class, which checks database connections in a thread for each message.
        """
        match message["type"]:
            case "tcp.receive":
                await self._receive(message["bytes"])
            case "tcp.connect":
                await self._connect()
            case "tcp.eof":
                if self._client is not None:  # answers that are in the output buffer are still sent
                    self._client.close(CloseReason.PEER_CLOSED)
            case "tcp.disconnect":
                if self._client is not None and message["reason"] == MADE_ROOM:
                    self._client.connection.lost(CloseReason.MADE_ROOM)
                raise StopConsumer
            case other:
                raise ValueError(f"{other!r} is no message of the tcp scope.")

    async def _connect(self) -> None:
        settings = self._broadcaster.settings
        client = self.scope.get("client")
        address = f"{client[0]}:{client[1]}" if client else ""
        bind_contextvars(address=address)
        await self.send({"type": "tcp.accept"})
        transport = self.scope["extensions"]["tcp.transport"]
        self._client = ReplicationClient.accept(transport, address, settings.server_name, self._broadcaster.limits)
        certificate = self.scope["extensions"].get("tls", {}).get("client_cert_name")
        rights = self._client.rights = self._broadcaster.rights.of(certificate)
        self._client.follows = rights.of_streams(self._broadcaster.streams)
        if rights.are_none:
            self._refuse(self._client, "this certificate has no rights here")
        self._broadcaster.join(self._client)

    async def _receive(self, data: bytes) -> None:
        client = self._client
        if client is None or not client.is_open:
            return  # input behind the bytes that ended the connection: up to a hundred messages
        for start in range(0, len(data), SLICE_BYTES):
            piece = data[start : start + SLICE_BYTES]
            started = time.monotonic()
            if self._is_free(len(piece), started) and self._broadcaster.free_time.has_some(started):
                self._handle_all(client, client.receive(piece))
                self._broadcaster.free_time.spend(time.monotonic() - started)
                continue
            is_first = client.connection.bytes_in < SLICE_BYTES
            client.waits_for_turn = True
            async with self._broadcaster.first_turn if is_first else self._broadcaster.turn:
                client.waits_for_turn = False
                started = time.monotonic()
                self._handle_all(client, client.receive(piece))
                await asyncio.sleep(self._broadcaster.rest_after(time.monotonic() - started))
        if not client.is_open and self._broadcaster.client_lines.has_room():
            log.info(
                "replication.closing", client=client.name, address=client.address, reason=client.connection.close_reason
            )

    def _is_free(self, size: int, now: float) -> bool:
        """Returns true if the client has sent at most ``FREE_BYTES`` in the present second, including ``size``.

        If the result is false, the input has to wait for a turn. Normal clients send less than the limit. Without this
        limit, fifty clients that flood the server would get fifty slices of input handled in each iteration of the
        event loop.
        """
        total = self._received.at(now) + size
        self._received.add(size)
        return total <= FREE_BYTES

    def _handle_all(self, client: ReplicationClient, commands: Sequence[Command]) -> None:
        reported: list[Command] = []
        for command in commands:
            self._broadcaster.counts.received[f"{command.WORD} {client.label}"] += 1
            if (refusal := client.rights.refusal(command) or self._reports.refusal(client, command)) is not None:
                self._refuse(client, refusal)
                break
            self._handle(client, command)
            if isinstance(command, FederationAck) and command.instance != self._name:
                self._reports.drop(command)  # a federation sender must not acknowledge for another one
                client.refuse(safe_text(f"it may not acknowledge for {command.instance[:100]}", None))
            else:
                reported.append(command)
        self._reports.add(client, reported)

    def _refuse(self, client: ReplicationClient, why: str) -> None:
        if self._broadcaster.client_lines.has_room():
            log.warning("replication.not_allowed", client=client.name, address=client.address, why=safe_text(why, None))
        client.refuse(safe_text(why, None))
        client.close(CloseReason.NOT_ALLOWED, safe_text(why, None))

    def _handle(self, client: ReplicationClient, command: Command) -> None:
        match command:
            case Replicate(streams):
                client.keep_place()
                self._broadcaster.limit_streams(client, streams)
                if not client.has_replicated and self._broadcaster.client_lines.has_room():
                    log.info("replication.follows", client=client.name, address=client.address)
                self._broadcaster.answer_replicate(client)
            case Name(name):
                client.keep_place()
                if self._name is None:  # only the first name: a client that changes its name often would get many rows
                    self._name = name
                self._broadcaster.name_client(client, safe_text(name))
                bind_contextvars(client=client.name)
            case Error(text) if not self._has_logged_error:
                self._has_logged_error = True  # later ones are only counted: a client must not be able to flood the log
                if self._broadcaster.client_lines.has_room():
                    log.warning(
                        "replication.client_error",
                        client=client.name,
                        address=client.address,
                        text=safe_text(text, 500),
                    )

    def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.lost()
            self._broadcaster.leave(client)
            # Clients without REPLICATE are only counted.
            if client.has_replicated and self._broadcaster.client_lines.has_room():
                log.info(
                    "replication.ended",
                    client=client.name,
                    address=client.address,
                    reason=str(client.connection.close_reason),
                    seconds=round(time.monotonic() - client.connected_at, 1),
                    lines_sent=client.connection.lines_out,
                    bytes_unread=client.buffered_bytes,
                )
            self._reports.remove(client)
