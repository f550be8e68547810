"""One connection of the replication protocol, for either side (pure).

The caller passes received bytes and the time to a `Connection`. The `Connection` returns commands, bytes to send, and
the time of its next deadline. It uses neither socket nor clock. It behaves like Synapse 1.43. Where it accepts more
than Synapse 1.43 on purpose, ``docs/reference/wire-differences.md`` says so. Assumes one caller at a time, and a time
that never goes back.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from streams.replication.errors import CommandError, IllegalMove
from streams.replication.protocol.commands import (
    COMMANDS,
    LINE_LIMIT_BYTES,
    Command,
    Error,
    Name,
    Ping,
    Replicate,
    Server,
    Side,
    format_line,
    parse_line,
)
from streams.stream_settings import StreamSettings

#: Characters of a bad line that the ERROR to its sender quotes.
_QUOTED_CHARACTERS = 80
_HTTP_METHODS = frozenset({"GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "CONNECT", "PRI"})


_HTTP_GUESS = "; this looks like HTTP: is this the replication port?"
#: First bytes of a TLS handshake. No command begins with these bytes.
_TLS_START = b"\x16\x03"


class State(enum.Enum):
    """The stages in the life of a connection."""

    NEW = "new"
    OPEN = "open"
    CLOSING = "closing"
    """A close was requested: output may still be sent, input is discarded."""
    CLOSED = "closed"


class CloseReason(enum.StrEnum):
    """The reason for the end of a connection. Ended connections are counted by their reasons."""

    PEER_CLOSED = "peer closed"
    LINE_TOO_LONG = "line too long"
    INVALID_UTF8 = "invalid UTF-8"
    PARSE_ERROR = "parse error"
    SPOKE_HTTP = "spoke HTTP"
    SPOKE_TLS = "spoke TLS"
    INVALID_COMMAND = "invalid command"
    PING_TIMEOUT = "ping timeout"
    TOO_SLOW = "too slow"
    WRONG_REMOTE = "wrong remote"
    MADE_ROOM = "made room"
    STOPPING = "stopping"
    RESTORED = "database restored"
    DISCONNECTED = "disconnected"
    NOT_ALLOWED = "not allowed"
    FAILED = "internal error"
    SERVER_LOST = "server gone"


@dataclass(frozen=True, slots=True)
class Limits:
    """The time limits of a connection, and the longest line."""

    ping_interval_seconds: float = StreamSettings().ping_interval_seconds
    ping_timeout_seconds: float = StreamSettings().ping_timeout_seconds
    abort_after_seconds: float = StreamSettings().close_limit_seconds
    """Time from the request to close until the caller is to abort a transport that is still open."""
    line_bytes: int = LINE_LIMIT_BYTES


#: The states in which each method may be called. A call in any other state is a mistake of the caller.
_ALLOWED: dict[str, frozenset[State]] = {
    "connected": frozenset({State.NEW}),
    "receive": frozenset({State.OPEN, State.CLOSING}),
    "send": frozenset({State.OPEN}),
    "tick": frozenset({State.OPEN, State.CLOSING}),
    "close": frozenset({State.NEW, State.OPEN, State.CLOSING}),
    "lost": frozenset(State),
}


class Connection:
    """One side of a connection: the rules that both sides share. ``now`` is in seconds of a clock that never goes back.

    ``epoch_offset_seconds`` is added to ``now`` to get the Unix time, which PING carries in milliseconds.
    """

    side: Side

    def __init__(self, limits: Limits | None = None, epoch_offset_seconds: float = 0.0) -> None:
        self.limits = limits or Limits()
        self.state = State.NEW
        self.close_reason: CloseReason | None = None
        self.bytes_in = self.lines_in = self.bytes_out = self.lines_out = 0
        self._epoch_offset_seconds = epoch_offset_seconds
        self._rest = b""
        self._output: list[bytes] = []
        self._words: Counter[str] = Counter()
        self._last_sent = self._last_command = self._closing_since = 0.0
        self._other_pings = False

    # --- inputs ---------------------------------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """Opens the connection and queues the greeting. Neither side waits for the other's greeting."""
        self._check("connected")
        self.state = State.OPEN
        self._last_command = now
        for command in self._greeting(now):
            self.send(command, now)

    def receive(self, data: bytes, now: float) -> list[Command]:
        """Returns the valid commands in ``data``, which was received, in order. Keeps an incomplete last line for the next call.

        At the first violation of the protocol the connection closes, and all further input is discarded.
        """
        self._check("receive")
        self.bytes_in += len(data)
        if self.state is State.CLOSING:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        # Checked before any line is complete: a TLS client waits for our handshake while we wait for a line feed.
        if self.lines_in == 0 and (lines or [self._rest])[0].startswith(_TLS_START):
            self.close(CloseReason.SPOKE_TLS, now, "this port does not speak TLS: connect in plain text")
            return []
        commands: list[Command] = []
        for line in lines:
            command = self._command_of(line, now)
            if command is not None:
                commands.append(command)
            if self.state is not State.OPEN:
                break
        # Without this check, a line that never ends would fill the memory.
        if self.state is State.OPEN and len(self._rest) > self.limits.line_bytes:
            self._refuse_length(now)
        if self.state is not State.OPEN:
            self._rest = b""
        return commands

    def send(self, command: Command, now: float) -> None:
        """Appends a command to the output of the connection. Raises `UnsendableCommand`."""
        self._check("send")
        line = format_line(command, self.limits.line_bytes)
        self._output.append(line)
        self._words[command.WORD] += 1
        self.count_sent(len(line), 1, now)

    def tick(self, now: float, *, reading: bool = True) -> None:
        """Handles a deadline: sends PING, or closes a connection whose other side is silent for too long.

        If ``reading`` is false, the caller did not read the socket, so that the other side may not have been silent.
        Then its silence is measured from ``now``.
        """
        self._check("tick")
        if self.state is not State.OPEN:
            return
        if not reading:
            self._last_command = now
        # As in 1.43, a client that never sent PING (a person with netcat) is never timed out.
        if self._other_pings and now >= self._last_command + self.limits.ping_timeout_seconds:
            self.close(CloseReason.PING_TIMEOUT, now, "ping timeout")
        elif now >= self._last_sent + self.limits.ping_interval_seconds:
            self.send(self._ping(now), now)

    def close(self, reason: CloseReason, now: float, text: str | None = None) -> None:
        """Closes the connection. If the connection is open and ``text`` is given, first sends ``text`` as an ERROR line.

        If the connection is closed several times, the first reason counts.
        """
        self._check("close")
        if self.state is State.CLOSING:
            return
        if text is not None and self.state is State.OPEN:
            self.send(Error(text[: self.limits.line_bytes - len("ERROR ")]), now)
        self.state = State.CLOSING
        self.close_reason = reason
        self._closing_since = now
        self._rest = b""

    def lost(self, reason: CloseReason = CloseReason.PEER_CLOSED) -> None:
        """Records that the transport of the connection is gone. May be called in any state."""
        self._check("lost")
        self.state = State.CLOSED
        self.close_reason = self.close_reason or reason
        self._output.clear()
        self._rest = b""

    def count_sent(self, size: int, lines: int, now: float) -> None:
        """Counts ``size`` bytes in ``lines`` lines as sent.

        The caller writes lines that many connections share directly to the transport, and then calls this method.
        """
        self.bytes_out += size
        self.lines_out += lines
        self._last_sent = now

    # --- outputs --------------------------------------------------------------------------------------------------

    def pop_output(self) -> bytes:
        output = b"".join(self._output)
        self._output.clear()
        return output

    def pop_words(self) -> Counter[str]:
        """Returns ``{command word: number of commands sent since the last call of this method}``.

        Lines that many connections share are not included.
        """
        words, self._words = self._words, Counter()
        return words

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    @property
    def last_command_at(self) -> float:
        """Returns the time of the last valid command that was received. Before the first, returns the time of `connected`."""
        return self._last_command

    @property
    def deadline(self) -> float:
        """Returns the time of the next deadline, or infinity if there is no deadline.

        At the deadline the caller must call `tick` if the connection is open, and abort the transport if the connection
        is closing.
        """
        if self.state is State.OPEN:
            ping_at = self._last_sent + self.limits.ping_interval_seconds
            timeout_at = self._last_command + self.limits.ping_timeout_seconds if self._other_pings else math.inf
            return min(ping_at, timeout_at)
        return self._closing_since + self.limits.abort_after_seconds if self.state is State.CLOSING else math.inf

    # --- rules ----------------------------------------------------------------------------------------------------

    def _greeting(self, now: float) -> tuple[Command, ...]:
        raise NotImplementedError

    def _react(self, command: Command, now: float) -> None:
        if isinstance(command, Ping):
            self._other_pings = True

    def _command_of(self, line: bytes, now: float) -> Command | None:
        if len(line) > self.limits.line_bytes:
            self._refuse_length(now)
            return None
        self.lines_in += 1
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            self.close(CloseReason.INVALID_UTF8, now)
            return None
        if not text.strip():  # ignored; 1.43 closes here
            return None
        try:
            command = parse_line(text)
        except CommandError as error:
            spoke_http = text.split(" ", 1)[0] in _HTTP_METHODS
            reason = CloseReason.SPOKE_HTTP if spoke_http else CloseReason.PARSE_ERROR
            self.close(reason, now, _parse_failure(text, error, _HTTP_GUESS if spoke_http else ""))
            return None
        if self.side.other not in COMMANDS[command.WORD].senders:
            self.close(CloseReason.INVALID_COMMAND, now, f"invalid command: {command.WORD}")
            return None
        self._last_command = now
        self._react(command, now)
        return command

    def _refuse_length(self, now: float) -> None:
        self.close(CloseReason.LINE_TOO_LONG, now, "Line length exceeded")

    def _ping(self, now: float) -> Ping:
        return Ping(str(int((now + self._epoch_offset_seconds) * 1000)))

    def _check(self, move: str) -> None:
        if self.state not in _ALLOWED[move]:
            raise IllegalMove(f"{move} on a connection that is {self.state.value}")


class ServerConnection(Connection):
    """The listening side of a connection."""

    side = Side.SERVER

    def __init__(self, server_name: str, limits: Limits | None = None, epoch_offset_seconds: float = 0.0) -> None:
        super().__init__(limits, epoch_offset_seconds)
        self._server_name = server_name

    def _greeting(self, now: float) -> tuple[Command, ...]:
        return Server(self._server_name), self._ping(now)


class ClientConnection(Connection):
    """The connecting side of a connection. Without ``server_name`` it accepts any server.

    ``before_replicate`` returns the commands to send before REPLICATE, such as USER_SYNC for users that sync here.
    ``streams`` are the only streams that the client wants. If ``streams`` is empty, it wants all streams.
    """

    side = Side.CLIENT

    def __init__(
        self,
        name: str,
        server_name: str | None = None,
        limits: Limits | None = None,
        epoch_offset_seconds: float = 0.0,
        before_replicate: Callable[[], Iterable[Command]] = tuple,
        *,
        streams: Iterable[str] = (),
    ) -> None:
        super().__init__(limits, epoch_offset_seconds)
        self._name = name
        self._replicate = Replicate(tuple(sorted(streams)))
        self._server_name = server_name
        self._before_replicate = before_replicate

    def _greeting(self, now: float) -> tuple[Command, ...]:
        return Name(self._name), self._ping(now), *self._before_replicate(), self._replicate

    def _react(self, command: Command, now: float) -> None:
        super()._react(command, now)
        if isinstance(command, Server) and self._server_name not in (None, command.server_name):
            self.close(CloseReason.WRONG_REMOTE, now, "Wrong remote")


def _parse_failure(line: str, error: CommandError, guess: str) -> str:
    cut = "..." if len(line) > _QUOTED_CHARACTERS else ""
    return f"failed to parse line: {error} ({line[:_QUOTED_CHARACTERS]!a}{cut}){guess}"
