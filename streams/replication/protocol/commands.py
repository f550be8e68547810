"""The commands of the replication protocol (pure): one value per command, read from and written to lines.

All of version 1.43, and those that later versions added (`LATER_WORDS`): a client of 1.43 must not be sent these.

A line is the command word, one blank and the arguments; fields are parted by exactly one blank, so two blanks mean an
empty field. Integers follow Python's ``int()``; tokens have at most 64 bits. The table `COMMANDS` is all there is to know
about a command: another one is one more row.
Assumes that a line comes without its line feed and is valid UTF-8.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from streams.core.json_codec import decode_json, encode_json
from streams.errors import BadJson
from streams.replication.errors import MalformedCommand, UnknownCommand, UnsendableCommand

__all__ = [
    "COMMANDS",
    "LATER_WORDS",
    "LINE_LIMIT_BYTES",
    "CancelTask",
    "ClearUserSync",
    "Command",
    "Error",
    "FederationAck",
    "Grammar",
    "LockReleased",
    "Name",
    "NewActiveTask",
    "Ping",
    "Position",
    "RData",
    "RemoteServerUp",
    "Replicate",
    "Server",
    "Side",
    "UserIP",
    "UserSync",
    "format_line",
    "parse_line",
    "printable",
]

#: Longest line of version 1.43, line feed not counted.
LINE_LIMIT_BYTES = 16_384

#: What stands in place of the token for all but the last row of a token.
_BATCH = "batch"
_SYNC_STATES = ("start", "end")


class Side(enum.Enum):
    """Who listens and who connects."""

    SERVER = "server"
    CLIENT = "client"

    @property
    def other(self) -> Side:
        return Side.CLIENT if self is Side.SERVER else Side.SERVER


class Command(msgspec.Struct, frozen=True):
    """One command; `WORD` is how it is called on the wire."""

    WORD: ClassVar[str] = ""


class Server(Command, frozen=True):
    """The server's name; the first line it sends."""

    WORD: ClassVar[str] = "SERVER"
    server_name: str


class RData(Command, frozen=True):
    """One row of a fact. Token None (``batch``): more rows of the same fact follow, the last one has the token."""

    WORD: ClassVar[str] = "RDATA"
    stream: str
    instance: str
    token: int | None
    row: Any


class Position(Command, frozen=True):
    """The writer wrote no rows with previous < token <= new that were not sent, and is at `new` now."""

    WORD: ClassVar[str] = "POSITION"
    stream: str
    instance: str
    previous: int
    new: int


class Error(Command, frozen=True):
    """Something went wrong; whoever sends it closes the connection."""

    WORD: ClassVar[str] = "ERROR"
    text: str


class Ping(Command, frozen=True):
    """A sign of life, usually with the sender's milliseconds since the epoch."""

    WORD: ClassVar[str] = "PING"
    text: str


class RemoteServerUp(Command, frozen=True):
    """A remote server can be reached again."""

    WORD: ClassVar[str] = "REMOTE_SERVER_UP"
    server_name: str


class Name(Command, frozen=True):
    """What the client calls itself."""

    WORD: ClassVar[str] = "NAME"
    name: str


class Replicate(Command, frozen=True):
    """The client asks for the position of every stream; arguments of older versions are ignored."""

    WORD: ClassVar[str] = "REPLICATE"


class UserSync(Command, frozen=True):
    """A user began or ended to sync on the worker process `instance_id` (not its instance name).

    `device_id` None: the form of 1.43, which has no device. Later versions write the word ``None`` for no device.
    """

    WORD: ClassVar[str] = "USER_SYNC"
    instance_id: str
    user_id: str
    is_syncing: bool
    last_sync_ms: int
    device_id: str | None = None


class ClearUserSync(Command, frozen=True):
    """Forget every syncing user of that worker process."""

    WORD: ClassVar[str] = "CLEAR_USER_SYNC"
    instance_id: str


class FederationAck(Command, frozen=True):
    """A federation sender has taken everything up to the token."""

    WORD: ClassVar[str] = "FEDERATION_ACK"
    instance: str
    token: int


class UserIP(Command, frozen=True):
    """From where a user's device was seen."""

    WORD: ClassVar[str] = "USER_IP"
    user_id: str
    access_token: str | None
    ip: str | None
    user_agent: str | None
    device_id: str | None
    last_seen_ms: int


class LockReleased(Command, frozen=True):
    """A lock that several processes share is free again (later versions)."""

    WORD: ClassVar[str] = "LOCK_RELEASED"
    instance: str
    lock_name: str
    lock_key: str


class NewActiveTask(Command, frozen=True):
    """A scheduled task is there to be run (later versions)."""

    WORD: ClassVar[str] = "NEW_ACTIVE_TASK"
    task_id: str


class CancelTask(Command, frozen=True):
    """A running task is to end (later versions)."""

    WORD: ClassVar[str] = "CANCEL_TASK"
    task_id: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """How the arguments of one command are read and written, and which sides may send it."""

    kind: type[Command]
    read: Callable[[str], Command]
    write: Callable[[Any], bytes]
    senders: frozenset[Side]


def parse_line(line: str) -> Command:
    """The command in a line; raises `UnknownCommand` or `MalformedCommand`."""
    word, _, arguments = line.partition(" ")
    grammar = COMMANDS.get(word)
    if grammar is None:
        raise UnknownCommand(f"unknown command {_short(word)}")
    try:
        return grammar.read(arguments)
    except BadJson as error:
        raise MalformedCommand(str(error)) from error


def format_line(command: Command, limit: int = LINE_LIMIT_BYTES) -> bytes:
    """The line of a command, with its line feed; raises `UnsendableCommand`. Its first blank is always there."""
    try:
        arguments = COMMANDS[command.WORD].write(command)
    except BadJson as error:
        raise UnsendableCommand(str(error)) from error
    line = b"%s %s" % (command.WORD.encode("ascii"), arguments)
    if b"\n" in line:
        raise UnsendableCommand(f"{command.WORD} holds a line feed")
    if len(line) > limit:
        raise UnsendableCommand(f"{command.WORD} is {len(line)} bytes long, a line holds {limit}")
    return line + b"\n"


def printable(text: str) -> str:
    """What a peer said, fit for logs, pages and terminals: whatever would move a cursor or turn text around is replaced."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


# --- reading arguments --------------------------------------------------------------------------------------------


def _fields(arguments: str, form: str) -> list[str]:
    """As many fields as `form` names; the last one may hold blanks."""
    wanted = form.count(" ") + 1
    fields = arguments.split(" ", wanted - 1)
    if len(fields) != wanted:
        raise MalformedCommand(f"{len(fields)} of {wanted} fields: {form}")
    return fields


def _integer(text: str, field: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise MalformedCommand(f"{field} {_short(text)} is no integer") from error


def _token(text: str, field: str) -> int:
    """A number that a database can hold."""
    token = _integer(text, field)
    if not -(2**63) <= token < 2**63:
        raise MalformedCommand(f"{field} {_short(text)} has more than 64 bits")
    return token


def _short(text: str, limit: int = 60) -> str:
    """Quoted in ASCII; cut before quoting, since quoting may lengthen each character tenfold."""
    return ascii(text) if len(text) <= limit else f"{text[:limit]!a}..."


def _read_rdata(arguments: str) -> RData:
    stream, instance, token, row = _fields(arguments, "stream instance token row")
    number = None if token == _BATCH else _token(token, "token")
    return RData(stream, instance, number, decode_json(row))


def _read_position(arguments: str) -> Position:
    stream, instance, previous, new = _fields(arguments, "stream instance prev new")
    return Position(stream, instance, _token(previous, "prev"), _token(new, "new"))


def _read_user_sync(arguments: str) -> UserSync:
    """Four fields, or with a device (later versions) five."""
    instance_id, user_id, state, last_sync_ms = _fields(arguments, "instance_id user_id state last_sync_ms")
    device_id = None
    head, _, rest = last_sync_ms.partition(" ")
    if head in _SYNC_STATES:
        device_id, state, last_sync_ms = state, head, rest
    if state not in _SYNC_STATES:
        raise MalformedCommand(f"state {_short(state)} is neither start nor end")
    return UserSync(instance_id, user_id, state == "start", _integer(last_sync_ms, "last_sync_ms"), device_id)


def _read_federation_ack(arguments: str) -> FederationAck:
    fields = arguments.split(" ")
    if len(fields) != 2:
        raise MalformedCommand(f"{len(fields)} of 2 fields: instance token")
    return FederationAck(fields[0], _token(fields[1], "token"))


def _read_user_ip(arguments: str) -> UserIP:
    user_id, text = _fields(arguments, "user_id json")
    parts = decode_json(text)
    if not isinstance(parts, list) or len(parts) != 5:
        raise MalformedCommand("json is no array of five: access_token, ip, user_agent, device_id, last_seen_ms")
    *names, last_seen_ms = parts
    if not all(name is None or isinstance(name, str) for name in names):
        raise MalformedCommand("access_token, ip, user_agent and device_id are strings or null")
    if type(last_seen_ms) is not int:
        raise MalformedCommand("last_seen_ms is an integer")
    access_token, ip, user_agent, device_id = names
    return UserIP(user_id, access_token, ip, user_agent, device_id, last_seen_ms)


def _read_lock_released(arguments: str) -> LockReleased:
    parts = decode_json(arguments)
    if not isinstance(parts, list) or len(parts) != 3 or not all(isinstance(part, str) for part in parts):
        raise MalformedCommand("json is no array of three strings: instance, lock_name, lock_key")
    return LockReleased(*parts)


# --- writing arguments --------------------------------------------------------------------------------------------


def _text(value: str) -> bytes:
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UnsendableCommand(f"{_short(value)} is no valid Unicode") from error


def _words(*values: str | int) -> bytes:
    """Fields before the last one must not hold a blank, which would shift all that follow."""
    for value in values:
        if isinstance(value, str) and " " in value:
            raise UnsendableCommand(f"field {_short(value)} holds a blank")
    return _text(" ".join(str(value) for value in values))


def _write_rdata(command: RData) -> bytes:
    token = _BATCH if command.token is None else command.token
    return b"%s %s" % (_words(command.stream, command.instance, token), encode_json(command.row))


def _write_user_sync(command: UserSync) -> bytes:
    state = "start" if command.is_syncing else "end"
    device = () if command.device_id is None else (command.device_id,)
    return _words(command.instance_id, command.user_id, *device, state, command.last_sync_ms)


def _write_user_ip(command: UserIP) -> bytes:
    _, *parts = msgspec.structs.astuple(command)
    return b"%s %s" % (_words(command.user_id), encode_json(parts))


# --- the table ----------------------------------------------------------------------------------------------------

_BOTH = frozenset(Side)
_SERVER_ONLY = frozenset({Side.SERVER})
_CLIENT_ONLY = frozenset({Side.CLIENT})

COMMANDS: dict[str, Grammar] = {
    grammar.kind.WORD: grammar
    for grammar in (
        Grammar(Server, Server, lambda c: _text(c.server_name), _SERVER_ONLY),
        Grammar(RData, _read_rdata, _write_rdata, _SERVER_ONLY),
        Grammar(Position, _read_position, lambda c: _words(c.stream, c.instance, c.previous, c.new), _SERVER_ONLY),
        Grammar(Error, Error, lambda c: _text(c.text), _BOTH),
        Grammar(Ping, Ping, lambda c: _text(c.text), _BOTH),
        Grammar(RemoteServerUp, RemoteServerUp, lambda c: _text(c.server_name), _BOTH),
        Grammar(Name, Name, lambda c: _text(c.name), _CLIENT_ONLY),
        Grammar(Replicate, lambda _: Replicate(), lambda _: b"", _CLIENT_ONLY),
        Grammar(UserSync, _read_user_sync, _write_user_sync, _CLIENT_ONLY),
        Grammar(ClearUserSync, ClearUserSync, lambda c: _text(c.instance_id), _CLIENT_ONLY),
        Grammar(FederationAck, _read_federation_ack, lambda c: _words(c.instance, c.token), _CLIENT_ONLY),
        Grammar(UserIP, _read_user_ip, _write_user_ip, _CLIENT_ONLY),
        Grammar(LockReleased, _read_lock_released, lambda c: encode_json(msgspec.structs.astuple(c)), _BOTH),
        Grammar(NewActiveTask, NewActiveTask, lambda c: _text(c.task_id), _BOTH),
        Grammar(CancelTask, CancelTask, lambda c: _text(c.task_id), _BOTH),
    )
}

#: Commands that 1.43 does not know: a client of it ends the connection when it hears one.
LATER_WORDS = frozenset({LockReleased.WORD, NewActiveTask.WORD, CancelTask.WORD})
