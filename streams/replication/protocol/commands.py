"""The commands of the replication protocol (pure): one class per command, parsed from lines and formatted as lines.

The module has all commands of Synapse 1.43, and the commands that later versions added (`LATER_WORDS`). A server must
not send a later command to a client of version 1.43.

A line is the command word, one blank and the arguments. Fields are separated by exactly one blank, so two blanks mean an
empty field. Integers follow Python's ``int()``; tokens have at most 64 bits. The table `COMMANDS` holds the grammar of
every command: a new command is one more entry. Assumes that a line comes without its line feed and is valid UTF-8.

Of RDATA, a server does not format the lines here: ``announcer.py`` does for rows that were read, and ``rdata_sql.py`` in the
database, for many rows at once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from streams.core.json_codec import decode_json, encode_json
from streams.errors import BadJson
from streams.replication.errors import MalformedCommand, UnknownCommand, UnsendableCommand

#: Longest line of version 1.43, line feed not counted.
LINE_LIMIT_BYTES = 16_384
#: The most characters of a stream's or a writer's name. An index of a table has both names, and a character takes up to
#: four bytes.
NAME_LIMIT = 255

#: The most characters of an ID or a server name that a server passes on to all clients. The Matrix specification allows
#: no user, room or server name that is longer. The key of a lock may be made of several IDs.
ID_LIMIT, LOCK_KEY_LIMIT = 255, 1_024

#: The word in place of the token in all rows of a fact but the last.
_BATCH = "batch"
_SYNC_STATES = ("start", "end")


class Side(enum.Enum):
    """An end of a connection: the server, which listens, or the client, which connects."""

    SERVER = "server"
    CLIENT = "client"

    @property
    def other(self) -> Side:
        return Side.CLIENT if self is Side.SERVER else Side.SERVER


class Command(msgspec.Struct, frozen=True):
    """Base of all commands. `WORD` is the command's word on the wire."""

    WORD: ClassVar[str] = ""


class Server(Command, frozen=True):
    """The server's name for itself. This command is the first line that a server sends."""

    WORD: ClassVar[str] = "SERVER"
    server_name: str


class RData(Command, frozen=True):
    """One row of a fact. A ``token`` of None, written ``batch``, means that more rows of the same fact follow.

    Only the last row of a fact has the token.
    """

    WORD: ClassVar[str] = "RDATA"
    stream: str
    instance: str
    token: int | None
    row: Any


class Position(Command, frozen=True):
    """The new position of a writer. The writer's rows with previous < token <= new were sent before this command."""

    WORD: ClassVar[str] = "POSITION"
    stream: str
    instance: str
    previous: int
    new: int


class Error(Command, frozen=True):
    """An error text for people. The sender closes the connection after it."""

    WORD: ClassVar[str] = "ERROR"
    text: str


class Ping(Command, frozen=True):
    """A message that shows that the sender is alive. ``text`` is usually the sender's Unix time in milliseconds."""

    WORD: ClassVar[str] = "PING"
    text: str


class RemoteServerUp(Command, frozen=True):
    """A notice that a remote homeserver can be reached again."""

    WORD: ClassVar[str] = "REMOTE_SERVER_UP"
    server_name: str


class Name(Command, frozen=True):
    """The client's name for itself."""

    WORD: ClassVar[str] = "NAME"
    name: str


class Replicate(Command, frozen=True):
    """A request for the positions of all streams, or of ``streams`` alone.

    With ``streams``, the server then sends the client only lines of these streams. On the wire their names are
    separated by commas. Synapse neither sends nor reads names here. Two arguments, as versions before 1.0 sent them,
    are ignored.
    """

    WORD: ClassVar[str] = "REPLICATE"
    streams: tuple[str, ...] = ()


class UserSync(Command, frozen=True):
    """A report that a user started or stopped syncing on a worker process.

    ``instance_id`` is a random ID of the process, and not its instance name. ``device_id`` is None if no device is
    named. The line of version 1.43 has no field for a device. Later versions write the word ``None`` for no device.
    """

    WORD: ClassVar[str] = "USER_SYNC"
    instance_id: str
    user_id: str
    is_syncing: bool
    last_sync_ms: int
    device_id: str | None = None


class ClearUserSync(Command, frozen=True):
    """A request to forget every syncing user of the worker process ``instance_id``."""

    WORD: ClassVar[str] = "CLEAR_USER_SYNC"
    instance_id: str


class FederationAck(Command, frozen=True):
    """The acknowledgement of a federation sender: the sender has handled every fact of ``federation`` up to ``token``."""

    WORD: ClassVar[str] = "FEDERATION_ACK"
    instance: str
    token: int


class UserIP(Command, frozen=True):
    """The address at which a user's device was seen. ``last_seen_ms`` is a Unix time in milliseconds."""

    WORD: ClassVar[str] = "USER_IP"
    user_id: str
    access_token: str | None
    ip: str | None
    user_agent: str | None
    device_id: str | None
    last_seen_ms: int


class LockReleased(Command, frozen=True):
    """A notice that a lock that several processes use is free again (only in later versions)."""

    WORD: ClassVar[str] = "LOCK_RELEASED"
    instance: str
    lock_name: str
    lock_key: str


class NewActiveTask(Command, frozen=True):
    """A notice that a scheduled task is ready to run (only in later versions)."""

    WORD: ClassVar[str] = "NEW_ACTIVE_TASK"
    task_id: str


class CancelTask(Command, frozen=True):
    """A request to end a running task (only in later versions)."""

    WORD: ClassVar[str] = "CANCEL_TASK"
    task_id: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """The grammar of one command: the functions that parse and format its arguments, and the sides that may send it.

    ``longest`` has the most characters of arguments. A received command with a longer argument is dropped (`overlong`),
    and does not end the connection: a user may choose the name that a worker reports.
    """

    kind: type[Command]
    read: Callable[[str], Command]
    write: Callable[[Any], bytes]
    senders: frozenset[Side]
    longest: Mapping[str, int] = field(default_factory=dict)


def parse_line(line: str) -> Command:
    """Returns the command in a line. Raises `UnknownCommand` or `MalformedCommand`."""
    word, _, arguments = line.partition(" ")
    grammar = COMMANDS.get(word)
    if grammar is None:
        raise UnknownCommand(f"unknown command {_short(word)}")
    try:
        return grammar.read(arguments)
    except BadJson as error:
        raise MalformedCommand(str(error)) from error


def format_line(command: Command, limit: int = LINE_LIMIT_BYTES) -> bytes:
    """Returns the line of a command, with its line feed.

    A blank follows the command word even if there are no arguments. Raises `UnsendableCommand` if the line is longer
    than ``limit`` bytes (line feed not counted), or if a field cannot be written.
    """
    if found := overlong(command):
        raise UnsendableCommand(found)
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


def overlong(command: Command) -> str:
    """Returns a description of the argument that has more characters than its limit, or an empty text if there is none."""
    for name, most in COMMANDS[command.WORD].longest.items():
        if len(text := getattr(command, name)) > most:
            return f"{command.WORD}: {name} {_short(text)} has more than {most} characters"
    return ""


# --- reading arguments --------------------------------------------------------------------------------------------


def _fields(arguments: str, form: str) -> list[str]:
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
    # A ``bigint`` column must hold it.
    token = _integer(text, field)
    if not -(2**63) <= token < 2**63:
        raise MalformedCommand(f"{field} {_short(text)} has more than 64 bits")
    return token


def _short(text: str, limit: int = 60) -> str:
    # Cut before quoting, which may lengthen a character tenfold.
    return ascii(text) if len(text) <= limit else f"{text[:limit]!a}..."


def is_name(text: str) -> bool:
    """Returns true if the tables can store ``text`` as the name of a stream or a writer."""
    return len(text) <= NAME_LIMIT and "\0" not in text


def _check_name(text: str, field: str) -> None:
    # A recorded stream stores these names in columns with an index. A name that is too long would stop the recording of
    # all streams.
    if not is_name(text):
        raise MalformedCommand(f"{field} {_short(text)} has NUL or more than {NAME_LIMIT} characters")


def _read_rdata(arguments: str) -> RData:
    stream, instance, token, row = _fields(arguments, "stream instance token row")
    for name, label in ((stream, "stream"), (instance, "instance")):
        _check_name(name, label)
    number = None if token == _BATCH else _token(token, "token")
    return RData(stream, instance, number, decode_json(row))


def _read_position(arguments: str) -> Position:
    stream, instance, previous, new = _fields(arguments, "stream instance prev new")
    for name, label in ((stream, "stream"), (instance, "instance")):
        _check_name(name, label)
    return Position(stream, instance, _token(previous, "prev"), _token(new, "new"))


def _read_replicate(arguments: str) -> Replicate:
    names = arguments.strip(" \r")  # no stream has a carriage return in its name
    return Replicate() if not names or " " in names else Replicate(tuple(sorted(set(names.split(",")) - {""})))


def _read_user_sync(arguments: str) -> UserSync:
    # Later versions add a fifth field, the device.
    instance_id, user_id, state, last_sync_ms = _fields(arguments, "instance_id user_id state last_sync_ms")
    device_id = None
    # Both forms are split into four fields, so with a device the last one is "start 123" or "end 123".
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
    if type(last_seen_ms) is not int:  # isinstance would accept true and false
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
    # A blank in a field would shift all later fields.
    for value in values:
        if isinstance(value, str) and " " in value:
            raise UnsendableCommand(f"field {_short(value)} holds a blank")
    return _text(" ".join(str(value) for value in values))


def _place(stream: str, instance: str, *tokens: str | int) -> bytes:
    # The other side would refuse such names.
    for name in (stream, instance):
        if not is_name(name):
            raise UnsendableCommand(f"name {_short(name)} has NUL or more than {NAME_LIMIT} characters")
    return _words(stream, instance, *tokens)


def _write_rdata(command: RData) -> bytes:
    token = _BATCH if command.token is None else command.token
    return b"%s %s" % (_place(command.stream, command.instance, token), encode_json(command.row))


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
        Grammar(Position, _read_position, lambda c: _place(c.stream, c.instance, c.previous, c.new), _SERVER_ONLY),
        Grammar(Error, Error, lambda c: _text(c.text), _BOTH),
        Grammar(Ping, Ping, lambda c: _text(c.text), _BOTH),
        Grammar(RemoteServerUp, RemoteServerUp, lambda c: _text(c.server_name), _BOTH, {"server_name": ID_LIMIT}),
        Grammar(Name, Name, lambda c: _text(c.name), _CLIENT_ONLY),
        Grammar(Replicate, _read_replicate, lambda c: _words(",".join(c.streams)), _CLIENT_ONLY),
        Grammar(UserSync, _read_user_sync, _write_user_sync, _CLIENT_ONLY),
        Grammar(ClearUserSync, ClearUserSync, lambda c: _text(c.instance_id), _CLIENT_ONLY),
        Grammar(FederationAck, _read_federation_ack, lambda c: _words(c.instance, c.token), _CLIENT_ONLY),
        Grammar(UserIP, _read_user_ip, _write_user_ip, _CLIENT_ONLY),
        Grammar(
            LockReleased,
            _read_lock_released,
            lambda c: encode_json(msgspec.structs.astuple(c)),
            _BOTH,
            {"instance": ID_LIMIT, "lock_name": ID_LIMIT, "lock_key": LOCK_KEY_LIMIT},
        ),
        Grammar(NewActiveTask, NewActiveTask, lambda c: _text(c.task_id), _BOTH, {"task_id": ID_LIMIT}),
        Grammar(CancelTask, CancelTask, lambda c: _text(c.task_id), _BOTH, {"task_id": ID_LIMIT}),
    )
}

#: Commands unknown to 1.43: a client of version 1.43 ends the connection when it receives such a command.
LATER_WORDS = frozenset({LockReleased.WORD, NewActiveTask.WORD, CancelTask.WORD})
