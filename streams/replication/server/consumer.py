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
        own = WorkerReports(broadcaster) if broadcaster is not None else None
        self._reports = reports or own or process_reports()
        self._peer: ReplicationClient | None = None
        self._has_said_error = False
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
            if self._peer is not None:
                self._peer.close(CloseReason.FAILED, "internal error")
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
                self._end_of_input()
            case "tcp.disconnect":
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
        self._peer = ReplicationClient.accept(transport, address, settings.server_name, self._broadcaster.limits)
        certificate = self.scope["extensions"].get("tls", {}).get("client_cert_name")
        rights = self._peer.rights = self._broadcaster.rights.of(certificate)
        self._peer.follows = rights.of_streams(self._broadcaster.streams)
        if rights.are_none:
            self._refuse(self._peer, "this certificate has no rights here")
        self._broadcaster.join(self._peer)

    async def _receive(self, data: bytes) -> None:
        peer = self._peer
        if peer is None or not peer.is_open:
            return  # input behind the bytes that ended the connection: up to a hundred messages
        for start in range(0, len(data), SLICE_BYTES):
            piece = data[start : start + SLICE_BYTES]
            begun = time.monotonic()
            if self._is_free(len(piece), begun) and self._broadcaster.free_time.has_some(begun):
                self._take(peer, peer.receive(piece))
                self._broadcaster.free_time.spend(time.monotonic() - begun)
                continue
            said_nothing = peer.connection.bytes_in < SLICE_BYTES
            peer.waits_for_turn = True
            async with self._broadcaster.first_turn if said_nothing else self._broadcaster.turn:
                peer.waits_for_turn = False
                begun = time.monotonic()
                self._take(peer, peer.receive(piece))
                await asyncio.sleep(self._broadcaster.rest_after(time.monotonic() - begun))
        if not peer.is_open and self._broadcaster.client_lines.has_room():
            log.info("replication.closing", client=peer.name, address=peer.address, reason=peer.connection.close_reason)

    def _is_free(self, size: int, now: float) -> bool:
        """Returns true if the client has sent at most ``FREE_BYTES`` in the present second, including ``size``.

        If the result is false, the input has to wait for a turn. Normal clients send less than the limit. Without this
        limit, fifty clients that flood the server would get fifty slices of input handled in each iteration of the
        event loop.
        """
        total = self._received.at(now) + size
        self._received.add(size)
        return total <= FREE_BYTES

    def _take(self, peer: ReplicationClient, commands: Sequence[Command]) -> None:
        reported: list[Command] = []
        for command in commands:
            self._broadcaster.counts.received[f"{command.WORD} {peer.label}"] += 1
            if (refusal := peer.rights.refusal(command) or self._reports.refusal(peer, command)) is not None:
                self._refuse(peer, refusal)
                break
            self._handle(peer, command)
            if isinstance(command, FederationAck) and command.instance != self._name:
                self._reports.drop(command)  # a federation sender must not acknowledge for another one
                peer.refuse(safe_text(f"it may not acknowledge for {command.instance[:100]}", None))
            else:
                reported.append(command)
        self._reports.take(peer, reported)

    def _refuse(self, peer: ReplicationClient, why: str) -> None:
        """Closes a connection because the client's certificate does not allow the client's command. ``why`` is the reason."""
        if self._broadcaster.client_lines.has_room():
            log.warning("replication.not_allowed", client=peer.name, address=peer.address, why=safe_text(why, None))
        peer.refuse(safe_text(why, None))
        peer.close(CloseReason.NOT_ALLOWED, safe_text(why, None))

    def _handle(self, peer: ReplicationClient, command: Command) -> None:
        """Applies a command to this connection. `WorkerReports` relays the commands that are for other clients."""
        match command:
            case Replicate(streams):
                peer.keep_place()
                self._broadcaster.limit_streams(peer, streams)
                if not peer.has_replicated and self._broadcaster.client_lines.has_room():
                    log.info("replication.follows", client=peer.name, address=peer.address)
                self._broadcaster.answer_replicate(peer)
            case Name(name):
                peer.keep_place()
                if self._name is None:  # only the first name: a client that changes its name often would get many rows
                    self._name = name
                self._broadcaster.name_peer(peer, safe_text(name))
                bind_contextvars(client=peer.name)
            case Error(text) if not self._has_said_error:
                self._has_said_error = True  # later ones are only counted: a client must not be able to flood the log
                if self._broadcaster.client_lines.has_room():
                    log.warning(
                        "replication.client_error",
                        client=peer.name,
                        address=peer.address,
                        text=safe_text(text, 500),
                    )

    def _end_of_input(self) -> None:
        """Closes the connection after the client has ended its input.

        Answers to the client's requests that are already in the output buffer are still sent.
        """
        if self._peer is not None:
            self._peer.close(CloseReason.PEER_CLOSED)

    def _leave(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.lost()
            self._broadcaster.leave(peer)
            # Clients without REPLICATE are only counted.
            if peer.has_replicated and self._broadcaster.client_lines.has_room():
                self._log_end(peer)
            self._reports.gone(peer)

    def _log_end(self, peer: ReplicationClient) -> None:
        connection = peer.connection
        log.info(
            "replication.ended",
            client=peer.name,
            address=peer.address,
            reason=str(connection.close_reason),
            seconds=round(time.monotonic() - peer.connected_at, 1),
            lines_sent=connection.lines_out,
            bytes_unread=peer.buffered_bytes,
        )
