"""Relays a worker's commands to all other clients: directly on this server, and by NOTIFY to the other servers.

The relayed commands are hints and not facts. They are not stored, and the loss of a command is harmless. Only the
commands in ``RELAYED`` are relayed, no matter if they come from a client or from another server. Every role that may
connect can send NOTIFY. So commands from other servers are accepted only if the sending session's role may write
(``streams.reading.trust``). Lines travel as base64 in parts, since a payload of NOTIFY holds no NUL and fewer than
8,000 bytes.

Synapse 1.43 does not know some later commands, and its clients would end the connection. So a later command is sent
only to clients that have sent a later command themselves. No command is sent to a client for which much waits.
Assumes a single event loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from streams.db import driver
from streams.reading.notify import NotifyListener
from streams.reading.trust import TrustedSessions
from streams.replication.common.command_hooks import dispatch
from streams.replication.common.second_total import SecondShares
from streams.replication.common.write_behind import BackgroundWriter
from streams.replication.errors import CommandError, UnsendableCommand
from streams.replication.protocol.commands import (
    LATER_WORDS,
    CancelTask,
    Command,
    LockReleased,
    NewActiveTask,
    RemoteServerUp,
    format_line,
    parse_line,
)
from streams.replication.server.broadcaster import RELAY_BYTES, Broadcaster, RelayedLine
from streams.replication.server.client import ReplicationClient
from streams.runtime.logs import get_logger

log = get_logger(__name__)
CHANNEL = "replsite_relay"
#: The commands that are sent to all clients.
RELAYED = (RemoteServerUp, LockReleased, NewActiveTask, CancelTask)

PART_BYTES = 7_000
#: Most commands that are relayed in a second: of one client, of all clients together, and of all other servers together.
#: If more is wanted, a client gets at most an equal share of the second number, and a server of the third (``SecondShares``).
#: A command counts once for each ``RELAYED_BYTES`` of its line, so that long commands do not overload clients with a slow
#: connection.
RELAYED_A_SECOND, ALL_RELAYED_A_SECOND, OTHERS_RELAYED_A_SECOND = 1_000, 2_000, 4_000
RELAYED_BYTES = 64
#: All connections that are younger have one share together. Otherwise a program that connects again and again would have a share
#: for each of its connections.
NEW_SECONDS = 10.0
#: Limit for lines that wait for the database. Unfinished messages of other servers may have twice as many bytes. Further
#: lines and parts are dropped and counted.
WAITING_LIMIT_BYTES = 256 * 1024
#: Commands that come within this time are sent together: to all other clients, and to all other servers. After a write to
#: all clients there is a pause that is ``PAUSES`` times as long as the write, but no longer than ``LONGEST_PAUSE_SECONDS``.
GAP_SECONDS, PAUSES, LONGEST_PAUSE_SECONDS = 0.05, 9, 1.0
#: The least time between two log lines about untrusted senders.
LOG_SECONDS = 60.0
#: Most parts of a message, and longest server name and message name.
_MOST_PARTS = 2 * WAITING_LIMIT_BYTES // PART_BYTES
_MOST_NAME = 64
#: Most unfinished messages of other servers.
_MOST_UNFINISHED = 1_000


class Part(NamedTuple):
    """One part of a message that a server sends to all servers. Each part is the payload of one NOTIFY."""

    server: str
    message: str
    number: int
    parts: int
    text: str

    @classmethod
    def parse(cls, payload: str) -> Part | None:
        """Parses the payload of a NOTIFY. Returns None if the payload does not have the form of a part."""
        fields = payload.split(" ")
        if len(fields) != 5 or max(len(fields[0]), len(fields[1])) > _MOST_NAME:
            return None
        if not all(text.isdecimal() and len(text) < 5 for text in fields[2:4]):
            return None
        number, parts = int(fields[2]), int(fields[3])
        return cls(fields[0], fields[1], number, parts, fields[4]) if number < parts <= _MOST_PARTS else None


def parts_of(server: str, data: bytes) -> list[str]:
    """Splits ``data``, which holds lines, into payloads for NOTIFY, each with at most ``PART_BYTES`` bytes of base64."""
    text = base64.b64encode(data).decode("ascii")
    pieces = [text[start : start + PART_BYTES] for start in range(0, len(text), PART_BYTES)]
    message = uuid.uuid4().hex
    return [f"{server} {message} {number} {len(pieces)} {piece}" for number, piece in enumerate(pieces)]


def notify_all(cursor: Any, server: str, data: bytes) -> None:
    """Sends ``data``, which holds lines, to every server as one message.

    One transaction sends all parts of the message, so that the parts arrive together.
    """
    channel = driver.channel(cursor, CHANNEL)
    cursor.execute("SELECT pg_notify(%s, part) FROM unnest(%s::text[]) AS part", [channel, parts_of(server, data)])


class _Listener(NotifyListener[Part]):
    """The listener for messages of other servers."""

    def __init__(self, relay: Relay, using: str) -> None:
        super().__init__(CHANNEL, relay.receive_in_thread, using, "relay")
        self._relay = relay
        self._trusted = TrustedSessions()
        self._logged_at = -math.inf

    def parse(self, notifications: Sequence[tuple[int, str]]) -> list[Part]:
        """Returns the parts that trusted sessions sent. Counts and drops all other payloads."""
        try:
            trusted = self._trusted.among({session for session, _ in notifications}, self.asking)
        except driver.DatabaseError as error:  # hints may be lost, and the listening connection still works
            log.debug("relay.senders_not_known", error=str(error).strip())
            self._relay.dropped["relay"] += len(notifications)
            return []
        strangers = {session for session, _ in notifications} - trusted
        if strangers and time.monotonic() > self._logged_at + LOG_SECONDS:
            self._logged_at = time.monotonic()
            log.warning("relay.stranger", sessions=sorted(strangers)[:10])
        parts = [Part.parse(payload) for session, payload in notifications if session in trusted]
        known = [part for part in parts if part is not None]
        self._relay.dropped["relay"] += len(notifications) - len(known)
        return known


class Relay:
    """The exchange of relayed commands between the clients of all servers."""

    def __init__(self, broadcaster: Broadcaster) -> None:
        self.dropped: Counter[str] = Counter()
        self._broadcaster = broadcaster
        self._key = uuid.uuid4().hex
        #: The weight that was relayed in the present second, by the keys of clients and of other servers.
        self._of_clients, self._of_servers = SecondShares(), SecondShares()
        #: Lines for the clients of this server, and the time of the next write.
        self._due: list[RelayedLine] = []
        self._next_write = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[bytes, None] = {}
        self._waiting_bytes = 0
        self._unfinished: dict[tuple[str, str], list[str]] = {}
        self._unfinished_bytes = 0
        using = broadcaster.settings.database
        self._connection = driver.KeptConnection(using, "replsite relay")
        self._flusher: BackgroundWriter[bytes] | None = None
        self._listener = _Listener(self, using)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Starts to receive commands from other servers and to send commands to them.

        Raises the driver's errors if the database cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        await self._loop.run_in_executor(None, self._listener.start)
        self._flusher = BackgroundWriter(
            "relay",
            self._collect,
            self._notify,
            gap_seconds=GAP_SECONDS,
            idle_seconds=60.0,
            close=self._connection.close,
        )
        self._flusher.start()

    async def stop(self) -> None:
        """Sends the waiting commands to the other servers, and stops the relay."""
        if self._loop is not None and self._flusher is not None:
            await self._flusher.stop()
            await self._loop.run_in_executor(None, self._listener.stop)

    def pass_on(self, commands: Sequence[Command], sender: ReplicationClient) -> None:
        """Sends a client's commands to all other clients, to the other servers, and to the command hooks of this process.

        Drops and counts commands that exceed the limits per second, or that cannot be written as a line.
        """
        if any(command.WORD in LATER_WORDS for command in commands):
            sender.knows_later_commands = True
        now = time.monotonic()
        is_new = now < sender.connected_at + NEW_SECONDS
        key = "new" if is_new and self._of_clients.is_contested(now, ALL_RELAYED_A_SECOND) else sender.key
        room = self._of_clients.room(key, now, RELAYED_A_SECOND, ALL_RELAYED_A_SECOND)
        lines = self._lines(commands, sender, room, self._of_clients.spare(key, ALL_RELAYED_A_SECOND))
        self._of_clients.add(key, sum(map(_weight, lines)), len(commands) - len(lines))
        self._send_to_clients(lines)
        for line in lines:
            self._wait(line)
        if self._flusher is not None:
            self._flusher.wake()

    def _lines(
        self,
        commands: Sequence[Command],
        sender: ReplicationClient | None,
        room: int,
        spare: int = 0,
    ) -> list[RelayedLine]:
        """Returns the lines of the commands that may be relayed, and calls their hooks. Drops and counts the others.

        ``room`` is the greatest weight of these lines. If it is too small for the first one, that may weigh up to ``spare``.
        """
        lines: list[RelayedLine] = []
        for number, command in enumerate(commands):
            if not isinstance(command, RELAYED):
                self.dropped["relay"] += 1
                continue
            try:
                data = format_line(command, self._broadcaster.settings.line_limit_bytes)
            except UnsendableCommand:
                # JSON in ASCII may be longer than the received JSON.
                self.dropped[command.WORD] += 1
                continue
            line = RelayedLine(command.WORD, data, sender)
            if (room := room - _weight(line)) < 0 and (lines or _weight(line) > spare):
                self.dropped.update(late.WORD for late in commands[number:])
                break
            lines.append(line)
            dispatch(command)
        return lines

    # --- here -----------------------------------------------------------------------------------------------------

    def _send_to_clients(self, lines: Sequence[RelayedLine]) -> None:
        # A thousand clients may each send one command. If each were written on its own, a thousand followers would get
        # a million writes.
        self._due += lines
        if not self._due or self._timer is not None:
            return
        wait = self._next_write - time.monotonic()
        if wait > 0:
            self._timer = asyncio.get_running_loop().call_later(wait, self._write_due)
        else:
            self._write_due()

    def _write_due(self) -> None:
        started = time.monotonic()
        due, self._due, self._timer = self._due, [], None
        known = [line for line in due if line.word not in LATER_WORDS]
        later = [line for line in due if line.word in LATER_WORDS]
        for lines, wants in ((known, lambda _: True), (later, lambda client: client.knows_later_commands)):
            for piece in _pieces(lines):
                left_out = self._broadcaster.relay(piece, wants)
                for line in piece if left_out else ():
                    self.dropped[line.word] += left_out
        ended = time.monotonic()
        pause = min((ended - started) * PAUSES, LONGEST_PAUSE_SECONDS)
        self._next_write = max(started + GAP_SECONDS, ended + pause)

    # --- to other servers -----------------------------------------------------------------------------------------

    def _wait(self, line: RelayedLine) -> None:
        if line.data in self._waiting:
            return  # equal hints that wait together are sent once
        if self._waiting_bytes + len(line.data) > WAITING_LIMIT_BYTES:
            self.dropped[line.word] += 1
            return
        self._waiting[line.data] = None
        self._waiting_bytes += len(line.data)

    def _collect(self) -> bytes | None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return data or None

    def _notify(self, data: bytes) -> None:
        with self._connection.cursor() as cursor:
            notify_all(cursor, self._key, data)

    # --- from other servers ---------------------------------------------------------------------------------------

    def receive_in_thread(self, parts: list[Part]) -> None:
        """Passes parts that were received in the listener's thread to the event loop."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._receive, parts)

    def _receive(self, parts: list[Part]) -> None:
        if not parts:
            self._forget_unfinished()  # a new connection: the missing parts were lost
        for part in parts:
            if part.server != self._key:
                self._add_part(part)

    def _forget_unfinished(self) -> None:
        self._unfinished.clear()
        self._unfinished_bytes = 0

    def _add_part(self, part: Part) -> None:
        key = part.server, part.message
        # One transaction sends all parts of a message, so they come in order.
        pieces = self._unfinished.setdefault(key, [])
        pieces.append(part.text)
        self._unfinished_bytes += len(part.text)
        if len(pieces) < part.parts:
            if len(self._unfinished) > _MOST_UNFINISHED or self._unfinished_bytes > 2 * WAITING_LIMIT_BYTES:
                self._forget_unfinished()
                self.dropped["relay"] += 1
            return
        del self._unfinished[key]
        self._unfinished_bytes -= sum(map(len, pieces))
        try:
            texts = base64.b64decode("".join(pieces), validate=True).decode("utf-8").split("\n")
            commands = [parse_line(text) for text in texts if text]
        except (CommandError, binascii.Error, UnicodeDecodeError) as error:  # from another version or program
            self.dropped["relay"] += 1
            log.warning("relay.not_understood", error=str(error))
            return
        room = self._of_servers.room(part.server, time.monotonic(), OTHERS_RELAYED_A_SECOND, OTHERS_RELAYED_A_SECOND)
        lines = self._lines(commands, None, room)
        self._of_servers.add(part.server, sum(map(_weight, lines)), len(commands) - len(lines))
        self._send_to_clients(lines)


def _pieces(lines: Sequence[RelayedLine]) -> Iterator[list[RelayedLine]]:
    """Yields the lines in pieces that end with the line by which they reach ``RELAY_BYTES``.

    Before each piece it is checked anew how much waits for each client: lines of a whole second may come at once.
    """
    piece: list[RelayedLine] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line.data)
        if size >= RELAY_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _weight(line: RelayedLine) -> int:
    return math.ceil(len(line.data) / RELAYED_BYTES)
