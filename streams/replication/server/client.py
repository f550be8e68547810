"""One connected client on the server's side: the protocol object, the transport, limits and figures.

Assumes a single event loop. All methods are quick and never wait.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from typing import Any, Protocol

from streams.replication.protocol.commands import Command
from streams.replication.protocol.connection import CloseReason, Limits, ServerConnection
from streams.replication.protocol.rights import EVERYTHING
from streams.runtime.logs import LineBound, get_logger
from streams.runtime.text import OTHER

log = get_logger(__name__)


class Transport(Protocol):
    """The sending side of a connection: the scope's extension ``tcp.transport`` (``docs/reference/tcp-scope.md``)."""

    @property
    def buffered_bytes(self) -> int: ...
    @property
    def unsent_bytes(self) -> int: ...
    @property
    def waiting_lines(self) -> int: ...
    @property
    def kernel_bytes(self) -> tuple[int, int]: ...
    def know(self) -> None: ...
    def write(self, data: bytes | memoryview, lines: int | None = None) -> None: ...
    def drop_waiting(self) -> int: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class ReplicationClient:
    """One client that is connected to this server."""

    def __init__(self, connection: ServerConnection, transport: Transport, address: str) -> None:
        self.connection = connection
        self.address = address
        self.key = uuid.uuid4().hex
        self.name = ""
        #: The label under which the client's commands are counted.
        self.label = OTHER
        self.connected_at = time.monotonic()
        self.has_replicated = False
        self.rights = EVERYTHING
        #: The number of commands of the client that were refused, and the reason for the last refusal.
        self.refused, self.refusal = 0, ""
        #: The streams whose lines the client gets, or null for all streams. The client may not follow other streams, or
        #: did not ask for them.
        self.follows: frozenset[str] | None = None
        #: True if the client sent a command that 1.43 does not know, so that such commands may be sent to the client.
        self.knows_later_commands = False
        #: ``answered``: number of the last REPLICATE, of any client, whose answer this client got. ``answered_at``:
        #: time of the last answer to a REPLICATE of this client.
        self.answered = 0
        self.answered_at = -math.inf
        #: True once the client's row was written to the table of readers, or the write was attempted.
        self.is_stored = False
        #: True while input of the client waits until other clients' input was handled.
        self.waits_for_turn = False
        self._transport = transport
        self._timer: asyncio.Handle | None = None
        self._timer_due = math.inf
        self._drained_bytes = 0
        self._drained_at = time.monotonic()

    @classmethod
    def accept(cls, transport: Transport, address: str, server_name: str, limits: Limits) -> ReplicationClient:
        """Creates the client of a new connection, sends the greeting to the client, and returns it."""
        now = time.monotonic()
        client = cls(ServerConnection(server_name, limits, time.time() - now), transport, address)
        client.connection.connected(now)
        client.flush()
        return client

    @property
    def is_open(self) -> bool:
        return self.connection.is_open

    @property
    def buffered_bytes(self) -> int:
        """Returns the number of sent bytes that the client has not taken yet."""
        return self._transport.buffered_bytes

    @property
    def unsent_bytes(self) -> int:
        """Returns the number of sent bytes that have not left this host. What is sent now comes behind them."""
        return self._transport.unsent_bytes

    def keep_place(self) -> None:
        """Protects the connection from being closed to make room for new connections.

        Called when the client has sent its name or has asked for facts.
        """
        self._transport.know()

    # --- out ------------------------------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        if self.is_open:
            self.connection.send(command, time.monotonic())
            self.flush()

    def write_shared(self, data: bytes | memoryview, lines: int, now: float) -> None:
        """Sends lines that go to many clients. The bytes are shared, not copied.

        If ``data`` is empty, does nothing. In particular the next PING is not delayed.
        """
        if self.is_open and data:
            self._transport.write(data, lines)
            self.connection.count_sent(len(data), lines, now)

    def flush(self) -> None:
        """Writes the output of the protocol object to the transport. If the connection is closing, closes the transport.

        Sets the timer for the next deadline of the protocol object.
        """
        if output := self.connection.pop_output():
            self._transport.write(output)
        if not self.is_open:
            self._transport.close()
        self._set_timer()

    # --- in -------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Command]:
        """Passes received bytes to the protocol object, and returns the commands in them."""
        commands = self.connection.receive(data, time.monotonic())
        if not self.is_open:
            self.flush()
        elif self.connection.deadline < self._timer_due:
            self._set_timer()
        return commands

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self, reason: CloseReason, text: str | None = None) -> None:
        """Closes the connection after all earlier output was sent. If ``text`` is given, first sends it as an ERROR line."""
        if self.is_open:
            self.connection.close(reason, time.monotonic(), text)
            self.flush()

    def refuse(self, why: str) -> None:
        self.refused, self.refusal = self.refused + 1, why

    def cut_when_slow(self, limit_bytes: int, stall_limit_seconds: float, now: float, lines: LineBound) -> bool:
        """Closes the client if too many bytes wait for it, or if it has not taken any bytes for too long.

        Returns true if it closed the client. ``lines`` is the limit for the log entry.
        """
        if not self.is_open:
            return False
        waiting = self.buffered_bytes
        drained = self.connection.bytes_out - waiting
        # The kernel takes more only when its buffer has run low. On a slow connection this takes long, and ``waiting`` does
        # not change meanwhile. So progress is measured by the bytes that have left the kernel's buffer.
        if waiting:
            drained -= self._transport.kernel_bytes[0]
        if waiting == 0 or drained != self._drained_bytes:
            self._drained_bytes, self._drained_at = drained, now
        stalled_seconds = now - self._drained_at
        if waiting <= limit_bytes and stalled_seconds <= stall_limit_seconds:
            return False
        if lines.has_room():
            log.warning(
                "replication.client_too_slow",
                client=self.name,
                address=self.address,
                waiting_bytes=waiting,
                stalled_seconds=round(stalled_seconds, 1),
            )
        self._transport.drop_waiting()
        self.close(CloseReason.TOO_SLOW, "Failed to keep up")
        return True

    def lost(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.connection.lost()

    # --- time -----------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = self.connection.deadline
        delay = self._timer_due - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(delay, 0.0), self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_due = None, math.inf
        if self.is_open:
            now = time.monotonic()
            if self.connection.deadline <= now:
                # Input that waits for its turn may have a PING. Without this, a crowd that keeps the server busy would
                # make it close clients that are not silent.
                self.connection.tick(now, reading=not self.waits_for_turn)
            self.flush()
        elif self.connection.deadline <= time.monotonic():
            self._transport.abort()  # closing, and the client has not taken its last bytes in time
        else:
            self._set_timer()

    def _rights(self) -> dict[str, Any]:
        return {**self.rights.in_words(), "refused": self.refused, "refusal": self.refusal}

    def figures(self, now: float) -> dict[str, Any]:
        """Returns the client's row for the table of readers. ``now`` is a monotonic time, as all times of this class."""
        connection = self.connection
        reason = connection.close_reason
        return {
            "key": self.key,
            "name": self.name or self.address,
            "address": self.address,
            "connected_seconds": now - self.connected_at,
            "bytes_in": connection.bytes_in,
            "bytes_out": connection.bytes_out,
            "lines_in": connection.lines_in,
            "lines_out": connection.lines_out,
            "buffer_bytes": self.buffered_bytes,
            "waiting_lines": self._transport.waiting_lines,
            **dict(zip(("kernel_send_bytes", "kernel_read_bytes"), self._transport.kernel_bytes, strict=True)),
            "close_reason": reason.value if reason else "",
            "rights": None if self.rights is EVERYTHING else self._rights(),
        }
