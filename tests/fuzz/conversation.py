"""What must hold for both ends of the protocol object, whatever comes in (pure).

`check` raises `Broken` with the rule. It hears the input whole and in pieces, with time going by, and holds what it hears
against `heard_by_the_book`, which is as slow and as plain as the text of the rules.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from streams.replication.errors import CommandError, UnsendableCommand
from streams.replication.protocol import commands as wire
from streams.replication.protocol.connection import (
    ClientConnection,
    CloseReason,
    Connection,
    Limits,
    ServerConnection,
    State,
)
from tests.fuzz.inputs import LIMIT_BYTES, pieces

__all__ = ["Broken", "check", "check_round_trip"]

HTTP_METHODS = ("GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "CONNECT", "PRI")
TLS_START = b"\x16\x03"
LIMITS = Limits(line_bytes=LIMIT_BYTES)
#: Greeting (three short lines), one PING for each tick, one ERROR.
LARGEST_OUTPUT_BYTES = 3 * 60 + 40 * 25 + LIMIT_BYTES + 1


class Broken(AssertionError):
    """A rule that does not hold, with the input."""


@dataclass(frozen=True)
class Heard:
    """What one end made of its input."""

    commands: tuple[wire.Command, ...]
    state: State
    reason: CloseReason | None


def server() -> ServerConnection:
    return ServerConnection("localhost", LIMITS)


def client() -> ClientConnection:
    return ClientConnection("fuzz", "localhost", LIMITS)


ENDS = (server, client)


def check(data: bytes, rng: random.Random) -> None:
    """Every rule, on both ends."""
    for end in ENDS:
        whole, output = _hear(end(), [data])
        by_the_book = heard_by_the_book(data, end().side)
        if whole != by_the_book:
            raise Broken(f"{end.__name__} differs from the book: {whole} against {by_the_book}; input {data!r}")
        in_pieces = _hear(end(), pieces(rng, data))
        _hold(in_pieces == (whole, output), "another outcome in pieces", data)
        if wrong := _wrong_with_output(end().side, output):
            raise Broken(f"{wrong}; input {data!r}")
        for command in whole.commands:
            check_round_trip(command)
        if rng.random() < 0.5:
            _check_with_time(end(), pieces(rng, data), rng)


def check_round_trip(command: wire.Command) -> None:
    """A command survives its line, or no line can carry it."""
    try:
        line = wire.format_line(command)
    except UnsendableCommand:
        return
    back = wire.parse_line(line[:-1].decode())
    if repr(back) != repr(command):  # as text: -0.0 and 0.0 are equal, and so are 1 and True
        raise Broken(f"round trip: {command} came back as {back}")


def heard_by_the_book(data: bytes, side: wire.Side) -> Heard:
    """Line by line, as one would tell it."""
    if data.startswith(TLS_START):
        return Heard((), State.CLOSING, CloseReason.SPOKE_TLS)
    heard: list[wire.Command] = []
    *lines, rest = data.split(b"\n")
    for line in lines:
        reason, command = _one_line(line, side)
        if reason is not None:
            return Heard(tuple(heard), State.CLOSING, reason)
        if command is not None:
            heard.append(command)
            if side is wire.Side.CLIENT and isinstance(command, wire.Server) and command.server_name != "localhost":
                return Heard(tuple(heard), State.CLOSING, CloseReason.WRONG_REMOTE)
    if len(rest) > LIMIT_BYTES:
        return Heard(tuple(heard), State.CLOSING, CloseReason.LINE_TOO_LONG)
    return Heard(tuple(heard), State.OPEN, None)


def _one_line(line: bytes, side: wire.Side) -> tuple[CloseReason | None, wire.Command | None]:
    if len(line) > LIMIT_BYTES:
        return CloseReason.LINE_TOO_LONG, None
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return CloseReason.INVALID_UTF8, None
    if not text.strip():
        return None, None
    try:
        command = wire.parse_line(text)
    except CommandError:
        is_http = text.split(" ")[0] in HTTP_METHODS
        return CloseReason.SPOKE_HTTP if is_http else CloseReason.PARSE_ERROR, None
    may_send = wire.COMMANDS[text.split(" ")[0]].senders
    return (None, command) if side.other in may_send else (CloseReason.INVALID_COMMAND, None)


def _hear(connection: Connection, parts: Sequence[bytes]) -> tuple[Heard, bytes]:
    data = b"".join(parts)
    connection.connected(0.0)
    heard: list[wire.Command] = []
    for part in parts:
        heard += connection.receive(part, 1.0)
        _check_size(connection, data)
    output = connection.pop_output()
    _hold((connection.close_reason is None) == connection.is_open, "closed without a reason", data)
    return Heard(tuple(heard), connection.state, connection.close_reason), output


def _check_size(connection: Connection, data: bytes) -> None:
    """What is kept stays below the limits at every moment."""
    _hold(len(connection._rest) <= LIMIT_BYTES, "keeps more than a line", data)
    _hold(connection.is_open or not connection._rest, "keeps input after the close", data)
    _hold(sum(map(len, connection._output)) <= LARGEST_OUTPUT_BYTES, "answers without end", data)


@lru_cache(maxsize=10_000)
def _wrong_with_output(side: wire.Side, output: bytes) -> str:
    """What the other end does not understand of it; nothing, if all is well. Most output is the greeting."""
    other = client() if side is wire.Side.SERVER else server()
    heard, _ = _hear(other, [output])
    if heard.state is not State.OPEN:
        return f"the other end closes on our output: {heard.reason}"
    if len(heard.commands) != output.count(b"\n"):
        return "output has lines that are no commands"
    return "" if output.isascii() else "output is not ASCII"


def _check_with_time(connection: Connection, parts: Sequence[bytes], rng: random.Random) -> None:
    """Ticks between the pieces: deadlines lie ahead, and the end has a reason that stays."""
    now, reason = 0.0, None
    data = b"".join(parts)
    connection.connected(now)
    for part in parts[:40]:
        now += rng.choice([0.0, 0.5, 4.9, 5.0, 14.9, 15.0, 60.0])
        if now >= connection.deadline and connection.is_open:
            connection.tick(now, reading=rng.random() < 0.9)
            _hold(connection.deadline > now, "wants to be called again at once", data)
        connection.receive(part, now)
        _check_size(connection, data)
        reason = reason or connection.close_reason
        _hold(connection.close_reason is reason, "the first reason does not stand", data)
        if rng.random() < 0.2:
            connection.pop_output()
    if rng.random() < 0.3:
        connection.close(CloseReason.STOPPING, now, "server stopping")
    connection.lost()
    _hold(connection.state is State.CLOSED and connection.close_reason is not None, "lost without a reason", data)
    _hold(not connection.pop_output() and not connection._rest, "keeps bytes after its end", data)


def _hold(rule: bool, what: str, data: bytes) -> None:
    if not rule:
        raise Broken(f"{what}; input {data!r}")
