"""Raw TCP connections as ASGI: the scope ``tcp`` beside ``http``, on a plain asyncio server.

This module does not know the replication protocol. ``docs/reference/tcp-scope.md`` describes the scope for other
applications. Input and output are bounded. Reading from the socket pauses while the application has not taken its
earlier input. Output waits in pieces of bytes that many connections may share.

Before a client speaks with the application, it needs a place, and its address or its certificate must allow it. The
bytes that decide this are read with ``MSG_PEEK``, so that whoever takes the connection over finds all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from streams.replication.protocol.access import Access, AllowedTransport
from streams.replication.transport.kernel_buffers import bound_the_rest, end_unanswered, kernel_bytes, unsent_bytes
from streams.replication.transport.tcp_places import TcpPlaces
from streams.replication.transport.tls import (
    HANDSHAKE,
    RECORD_HEAD_BYTES,
    Certificates,
    Handshake,
    Refusal,
    refusal_of,
)
from streams.runtime.logs import get_logger
from streams.stream_settings import StreamSettings

__all__ = ["MADE_ROOM", "Application", "ListenerLimits", "TcpConnection", "TcpListener"]

log = get_logger(__name__)

#: Unread input of one application, in bytes, at which reading from the socket pauses, and at which it resumes.
INPUT_HIGH_BYTES, INPUT_LOW_BYTES = 32 * 1024, 8 * 1024
#: Memory of a message of input besides its data. Without it, a client that sends single bytes could fill the memory.
MESSAGE_BYTES = 256
#: The transport's write buffer, in bytes. Further output waits in shared pieces.
TRANSPORT_HIGH_BYTES = 64 * 1024
#: The most bytes of a connection that the kernel keeps before it can send them; 4 MB by itself. It makes a copy for each
#: connection: those for 1,000 clients that read nothing took gigabytes, and most of the event loop's time until all were full.
UNSENT_BYTES = 128 * 1024
#: The most TCP connections that are accepted at a time, before other work of the event loop has its turn, and the pause
#: after an error of accepting, such as too few file descriptors.
ACCEPTED_AT_ONCE, ACCEPT_AGAIN_SECONDS = 16, 1.0
#: The least time between two log lines about refusals for the same reason. All refusals are counted.
REFUSAL_LOG_SECONDS = 1.0
#: If a client may use plain text or TLS and sends nothing for this time, plain text is assumed. A client that uses TLS on a busy
#: machine may need seconds for its first byte, and can make nothing of plain text.
FIRST_BYTE_SECONDS = 3.0
#: Time for a refused client to read the reason.
LINGER_SECONDS = 2.0
#: The most handshakes that have begun and are not done. For one more, the oldest of the address with most is ended: a client
#: that sends the same first bytes again and again and never ends one costs this server a millisecond each time. Each takes 65 kB;
#: a thousand followers that come back at once have all begun before the first of them is done.
UNFINISHED_HANDSHAKES = 1_024
#: The most handshakes that begin at a time, before other work of the event loop has its turn: a thousand at once held it for
#: a second.
BEGINNING_HANDSHAKES = 8
#: The first byte of a TLS handshake, with which no line of the replication protocol begins, and the longest record in it.
_HANDSHAKE, _RECORD_BYTES = 0x16, 16 * 1024
#: What a client learns for which there is no place, or not any more, and `tcp.disconnect`'s reason for the latter.
_TOO_MANY = b"ERROR too many connections\n"
MADE_ROOM = "made room"
_NEEDS_TLS = b"ERROR this port speaks TLS only: connect with a client certificate\n"
_NEEDS_CERTIFICATE = b"ERROR a client certificate is needed, from an authority that this server trusts\n"
Message = dict[str, Any]
Application = Callable[..., Awaitable[None]]


class TcpConnection(asyncio.Protocol):
    """One accepted connection. The object itself is the scope's extension ``tcp.transport``.

    All methods must be called on the event loop. `write` never blocks, so the application must watch `buffered_bytes`.
    """

    def __init__(
        self, places: TcpPlaces, admission: asyncio.Task[Any] | None = None, unanswered_seconds: float = math.inf
    ) -> None:
        self._places = places
        self._admission = admission
        self._unanswered_seconds = unanswered_seconds
        self._transport: asyncio.Transport | None = None
        self._input: deque[Message] = deque()
        self._input_bytes = 0
        self._input_ready = asyncio.Event()
        self._accepted = False
        self._paused_reading = False
        #: Pieces that the transport has not received yet, and the number of line ends in each. Two deques: a tuple for each piece
        #: and connection would take more memory than the pieces, which many connections share.
        self._output: deque[bytes | memoryview] = deque()
        self._output_lines: deque[int] = deque()
        self._output_bytes = self._waiting_lines = 0
        self._can_write = True
        self._is_closing = False
        self._lost_reason = ""
        self.is_lost = asyncio.Event()
        self.scope: Message = {}
        """The ASGI scope; empty until the client was admitted."""

    # --- for the application --------------------------------------------------------------------------------------

    def know(self) -> None:
        """Marks the client as known, so that the connection is not closed to make room for others.

        The application decides when it calls this method. The replication protocol does so when a client has sent its
        name or has asked for facts.
        """
        self._places.know(self)

    def write(self, data: bytes | memoryview, lines: int | None = None) -> None:
        """Sends ``data`` after all earlier bytes. Does nothing if the connection is closing.

        ``lines`` is the number of line ends in ``data``, for a caller that knows it: they are not counted then.
        """
        if self._is_closing or not data:
            return
        if self._can_write and not self._output and self._transport is not None:
            self._transport.write(data)
            return
        # The piece is kept as a reference. The transport would copy the piece for each connection.
        self._output.append(data)
        self._output_bytes += len(data)
        self._output_lines.append(bytes(data).count(b"\n") if lines is None else lines)
        self._waiting_lines += self._output_lines[-1]

    @property
    def buffered_bytes(self) -> int:
        if self._transport is None:
            return 0
        return self._output_bytes + self._transport.get_write_buffer_size()

    @property
    def waiting_lines(self) -> int:
        """Returns the number of line ends in the output that the transport has not received yet."""
        # Counted as they are written: to count those of 500 clients that do not read, each second, took more than two seconds.
        return self._waiting_lines

    @property
    def kernel_bytes(self) -> tuple[int, int]:
        """Returns two byte counts of the kernel's buffers: (sent but not acknowledged, received but not read).

        Both counts are 0 on systems that do not report them.
        """
        return kernel_bytes(self.descriptor)

    @property
    def unsent_bytes(self) -> int:
        """Returns the number of written bytes that have not left this host: ``buffered_bytes``, and those of the kernel."""
        return self.buffered_bytes + unsent_bytes(self.descriptor)

    @property
    def descriptor(self) -> int:
        """Returns the descriptor of the socket; -1 while there is none."""
        made = self._transport.get_extra_info("socket") if self._transport is not None else None
        return made.fileno() if made is not None else -1

    def drop_waiting(self) -> int:
        """Drops the pieces of output that the transport has not received yet. Returns the number of dropped bytes.

        The client still receives a whole number of pieces. If each piece is a whole line, it receives only whole lines.
        """
        dropped, self._output_bytes, self._waiting_lines = self._output_bytes, 0, 0
        self._output.clear()
        self._output_lines.clear()
        return dropped

    def close(self) -> None:
        self._is_closing = True
        bound_the_rest(self.descriptor, self._unanswered_seconds)
        if self._transport is not None and not self._output:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once. Unsent bytes are lost."""
        self._is_closing = True
        bound_the_rest(self.descriptor, self._unanswered_seconds)
        self.drop_waiting()
        if self._transport is not None:
            self._transport.abort()
        elif not self.scope and self._admission is not None:
            self._admission.cancel()

    def give_way(self) -> None:
        """Closes the connection to make room for another one. If no earlier output waits, the client gets the reason first."""
        self._lost_reason = MADE_ROOM
        if self._transport is None or self.buffered_bytes:
            self.abort()
            return
        self.write(_TOO_MANY)
        self.close()
        # Of TLS the other end has to agree to the close. A silent one would never do so.
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self.abort)

    def end_turn(self) -> None:
        """Leaves the client's further input unread until other work of the event loop had its turn."""
        if self._transport is not None and not self._paused_reading:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._begin_turn)

    # --- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=TRANSPORT_HIGH_BYTES)
        self._transport.pause_reading()  # until the application accepts
        self._paused_reading = True
        # The event loop of Python 3.11.2 starts reading after `connection_made`, even if that has paused reading.
        asyncio.get_running_loop().call_soon(self._pause_again)
        self.scope = {
            "type": "tcp",
            "asgi": {"version": "3.0"},
            "client": _address(self._transport.get_extra_info("peername")),
            "server": _address(self._transport.get_extra_info("sockname")),
            "extensions": {"tcp.transport": self, **_tls_extension(self._transport)},
        }
        self._put({"type": "tcp.connect"})

    def data_received(self, data: bytes) -> None:
        self._put({"type": "tcp.receive", "bytes": data})
        if self._input_bytes > INPUT_HIGH_BYTES and self._transport is not None:
            self._transport.pause_reading()
            self._paused_reading = True

    def eof_received(self) -> bool:
        """Reports the end of the client's input. The application may still answer earlier input, except through TLS."""
        if not self._lost_reason:  # else it is the answer of TLS to our close
            self._put({"type": "tcp.eof"})
        return "tls" not in self.scope["extensions"]

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        while self._output and self._can_write and self._transport is not None:
            piece = self._output.popleft()
            self._output_bytes -= len(piece)
            self._waiting_lines -= self._output_lines.popleft()
            self._transport.write(piece)
        if self._is_closing and not self._output and self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.drop_waiting()
        self._put({"type": "tcp.disconnect", "reason": self._lost_reason or str(exc or "")})
        self._places.leave(self)
        self.is_lost.set()

    # --- ASGI -----------------------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Returns the next ASGI message for the application. Waits until there is one."""
        while not self._input:
            self._input_ready.clear()
            await self._input_ready.wait()
        message = self._input.popleft()
        self._input_bytes -= _weight(message)
        if self._input_bytes < INPUT_LOW_BYTES:
            self._resume_reading()
        return message

    def handle_reply(self, message: Message) -> None:
        """Executes an ASGI message of the application. Raises `ValueError` for a message of an unknown type."""
        kind = message["type"]
        if kind == "tcp.accept":
            self._accepted = True
            self._resume_reading()
        elif kind == "tcp.send":
            self.write(message["bytes"])
        elif kind == "tcp.close":
            self.abort() if message.get("abort") else self.close()
        else:
            raise ValueError(f"{kind!r} cannot be sent on a tcp scope; use tcp.accept, tcp.send or tcp.close.")

    def _pause_again(self) -> None:
        # The transport believes that it is paused, and would ignore a second `pause_reading` alone.
        if self._paused_reading and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._accepted and self._paused_reading and self._transport is not None and not self._transport.is_closing():
            self._paused_reading = False
            self._transport.resume_reading()

    def _begin_turn(self) -> None:
        if self._transport is not None and not self._paused_reading and not self._transport.is_closing():
            self._transport.resume_reading()

    def _put(self, message: Message) -> None:
        self._input.append(message)
        self._input_bytes += _weight(message)
        self._input_ready.set()


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The limits of the connections of one `TcpListener`."""

    connections: int = StreamSettings().connection_limit
    of_address: int = StreamSettings().connection_address_limit
    """Connections from one address (IPv6: one /64; this machine counts as one); 0: no limit."""
    handshake_seconds: float = StreamSettings().handshake_limit_seconds
    unanswered_seconds: float = 2 * StreamSettings().send_stall_limit_seconds
    """Time after which a connection ends whose other end acknowledges nothing, or takes nothing."""


class _Refused(Exception):
    """The end of a client that may not come in. ``text`` is its answer."""

    def __init__(self, text: bytes, *, lingers: bool = True) -> None:
        super().__init__(text)
        self.text, self.lingers = text, lingers


class TcpListener:
    """Accepts raw TCP connections on listening sockets, checks who may come in, and runs ``application`` on each.

    Sockets must be bound and listening. So the caller handles errors of binding, and if it asked for port 0, it knows the
    chosen port before the start. ``refusals`` counts refused connections by reason.
    """

    def __init__(
        self,
        application: Application,
        sockets: Sequence[socket.socket],
        limits: ListenerLimits | None = None,
        access: Access | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self.refusals: Counter[str] = Counter()
        self._application = application
        self._sockets = tuple(sockets)
        self.limits = limits or ListenerLimits()
        self._access = access or Access(has_tls=certificates is not None)
        self._certificates = cast(Certificates, certificates)  # used only where `access` allows TLS
        self._places = TcpPlaces(self.limits.connections, self.limits.of_address)
        self._unfinished = TcpPlaces(UNFINISHED_HANDSHAKES)
        self._beginning = asyncio.Semaphore(BEGINNING_HANDSHAKES)
        self._running: list[asyncio.Task[None]] = []
        self._attending: set[asyncio.Task[None]] = set()
        self._logged: dict[Refusal, float] = {}

    def __len__(self) -> int:
        """Returns the number of connections that hold a place."""
        return len(self._places)

    def start(self) -> None:
        for listener in self._sockets:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        # Of a host that vanished nothing comes, and the few bytes that are sent to it would wait in the kernel for a
        # quarter of an hour.
        watch = end_unanswered(self.limits.unanswered_seconds, self._descriptors, TcpConnection.abort)
        self._running = [asyncio.ensure_future(work) for work in (watch, *map(self._accept, self._sockets))]

    def _descriptors(self) -> dict[TcpConnection, int]:
        return {place: place.descriptor for place in self._places if isinstance(place, TcpConnection)}

    async def stop(self) -> None:
        """Accepts no more connections, and closes the sockets."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for listener in self._sockets:
            listener.close()

    async def end(self) -> None:
        """Aborts all connections, and waits until their applications have ended."""
        for connection in self._places:
            connection.abort()
        for task in self._attending:
            task.cancel()
        await asyncio.gather(*self._attending, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        # A few at a time: the event loop's own server accepts all waiting connections in one iteration. So either a
        # crowd of 2,000 clients keeps all followers waiting for seconds, or the backlog is too short for it.
        loop = asyncio.get_running_loop()
        while True:
            try:
                made = [await loop.sock_accept(listener)]
                with contextlib.suppress(OSError):  # no more; or an error that the next turn meets, too
                    while len(made) < ACCEPTED_AT_ONCE:
                        made.append(listener.accept())
            except ConnectionAbortedError:  # that client is gone
                continue
            except OSError as error:
                log.warning("listener.not_accepted", error=str(error))
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            for client, address in made:
                client.setblocking(False)
                task = asyncio.ensure_future(self._attend(client, address[0] if isinstance(address, tuple) else ""))
                self._attending.add(task)
                task.add_done_callback(self._attending.discard)
            await asyncio.sleep(0)

    async def _attend(self, made: socket.socket, host: str) -> None:
        connection = TcpConnection(self._places, asyncio.current_task(), self.limits.unanswered_seconds)
        try:
            try:
                if is_tls := await self._begins_tls(made, connection, host):
                    await self._beginning.acquire()
            except BaseException as error:
                if isinstance(error, _Refused):
                    await _part(made, error)
                made.close()
                raise
            # From now on the event loop's transport has the socket.
            if is_tls:
                await self._shake_hands(made, connection, host)
            else:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, made)
        except _Refused:
            return
        except OSError as error:
            self._refuse(Refusal.HANDSHAKE, host, detail=str(error))
            return
        except asyncio.CancelledError:
            self._refuse(Refusal.HANDSHAKE, host, detail="it gave way to others")
            raise
        finally:
            if not connection.scope:
                self._places.leave(connection)
        if is_tls and "tls" not in connection.scope["extensions"]:
            self._refuse(Refusal.NO_CERTIFICATE, host)
            await self._run(_ask_for_certificate, connection)
        else:
            await self._run(self._application, connection)

    async def _begins_tls(self, made: socket.socket, connection: TcpConnection, host: str) -> bool:
        """Takes a place, and waits until it is known how the client speaks. Returns true if its TLS handshake can begin."""
        allowed = self._access.transport_for(host)
        if (reason := self._places.enter(connection, host)) is not None:
            # A client that uses TLS could not make sense of a line of text.
            text = b"" if allowed is AllowedTransport.TLS else _TOO_MANY
            raise self._refuse(reason, host, text, lingers=False)
        if allowed is AllowedTransport.NOTHING:
            text = b"ERROR clients from this network are not allowed without TLS\n"
            raise self._refuse(Refusal.NETWORK, host, text)
        if allowed is AllowedTransport.PLAIN:
            return False
        is_either, first = allowed is AllowedTransport.EITHER, b""
        try:
            try:
                async with asyncio.timeout(FIRST_BYTE_SECONDS if is_either else self.limits.handshake_seconds):
                    first = await _peek(made, 1)
            except TimeoutError:
                # The byte may be there: after a long iteration of the event loop both are noticed in the next one.
                with contextlib.suppress(BlockingIOError):
                    first = made.recv(1, socket.MSG_PEEK)
                if not first:
                    raise
            if first and first[0] != _HANDSHAKE:
                if is_either:
                    return False
                raise self._refuse(Refusal.NOT_TLS, host, _NEEDS_TLS)
            # Handshakes begin with the whole first record: a client that sends it in pieces costs nothing until then.
            async with asyncio.timeout(self.limits.handshake_seconds):
                head = await _peek(made, RECORD_HEAD_BYTES)
                length = RECORD_HEAD_BYTES + min(int.from_bytes(head[-2:]), _RECORD_BYTES)
                if len(head) == RECORD_HEAD_BYTES and len(await _peek(made, length)) == length:
                    return True
        except TimeoutError:
            if is_either and not first:
                return False
            raise self._refuse(Refusal.TIMEOUT, host, b"" if first else _NEEDS_TLS) from None
        raise self._refuse(Refusal.HANDSHAKE, host, detail="the client ended the connection")

    async def _shake_hands(self, made: socket.socket, connection: TcpConnection, host: str) -> None:
        # The turn to begin is released as soon as the handshake has begun.
        loop, refused = asyncio.get_running_loop(), list[_Refused]()
        reason, detail = Refusal.HANDSHAKE, "the connection was lost"
        with contextlib.ExitStack() as beginning:
            beginning.callback(self._beginning.release)

            def fail(error: ssl.SSLError) -> None:
                refused.append(self._refuse(refusal_of(error), host, detail=str(error)))
                limit.reschedule(loop.time() + LINGER_SECONDS)  # for the client to take the alert, and to go

            HANDSHAKE.set(Handshake(beginning.close, fail, connection.end_turn))
            self._unfinished.enter(connection, host)
            try:
                async with asyncio.timeout(self.limits.handshake_seconds) as limit:
                    context = self._certificates.context()
                    await loop.connect_accepted_socket(lambda: connection, made, ssl=context)
            except OSError as error:  # among them TimeoutError
                reason, detail = Refusal.TIMEOUT if isinstance(error, TimeoutError) else reason, str(error)
            finally:
                self._unfinished.leave(connection)
        if not connection.scope:
            raise refused[0] if refused else self._refuse(reason, host, detail=detail)

    def _refuse(
        self, reason: Refusal, host: str, text: bytes = b"", *, detail: str = "", lingers: bool = True
    ) -> _Refused:
        # At most one line per reason in `REFUSAL_LOG_SECONDS` is logged.
        self.refusals[reason.value] += 1
        now = time.monotonic()
        if now >= self._logged.get(reason, 0.0) + REFUSAL_LOG_SECONDS:
            self._logged[reason] = now
            log.warning("listener.connection_refused", client=host, reason=reason.value, detail=detail)
        return _Refused(text, lingers=lingers)

    async def _run(self, application: Application, connection: TcpConnection) -> None:
        async def send(message: Message) -> None:
            connection.handle_reply(message)

        try:
            await application(connection.scope, connection.receive, send)
        except Exception:
            log.exception("listener.application_failed", client=connection.scope["client"])
        finally:
            connection.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(connection.is_lost.wait(), LINGER_SECONDS)
        connection.abort()


async def _ask_for_certificate(scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
    # The handshake went well, so that the reason can be sent.
    await send({"type": "tcp.accept"})
    await send({"type": "tcp.send", "bytes": _NEEDS_CERTIFICATE})
    # Closing now, while input of the client is under way, could destroy the text.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while (await receive())["type"] in ("tcp.connect", "tcp.receive"):
                pass


async def _peek(made: socket.socket, least: int) -> bytes:
    """Returns the first ``least`` bytes of a client's input, and leaves them to be read. Fewer: the input ended before."""
    with contextlib.suppress(BlockingIOError):
        if len(found := made.recv(least, socket.MSG_PEEK)) in (0, least):
            return found
    loop, is_there = asyncio.get_running_loop(), asyncio.Event()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
    loop.add_reader(made, is_there.set)
    try:
        await is_there.wait()
        return made.recv(least, socket.MSG_PEEK)
    finally:
        loop.remove_reader(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


async def _part(made: socket.socket, refused: _Refused) -> None:
    # Closing at once, while input of the client is unread, would reset the connection and destroy the text under way.
    with contextlib.suppress(OSError):  # the client may be gone; TimeoutError is one of them
        made.send(refused.text)
        made.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(LINGER_SECONDS if refused.lingers else 0):
            while await asyncio.get_running_loop().sock_recv(made, 64 * 1024):
                pass


def _weight(message: Message) -> int:
    return len(message.get("bytes", b"")) + MESSAGE_BYTES


def _tls_extension(transport: asyncio.Transport) -> Message:
    """Returns ASGI's extension ``tls``: the common name in the client's certificate, and the TLS version. Empty without TLS."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return {}
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    tls = transport.get_extra_info("ssl_object")
    return {"tls": {"client_cert_name": ", ".join(names), "tls_version": tls.version()}}


def _address(name: Any) -> list[Any] | None:
    # A Unix socket has no host and port.
    return [name[0], name[1]] if isinstance(name, tuple) else None
