"""What one worker tells all others is passed on: to every other connection here, and by NOTIFY to those of other servers.

Such commands are hints, not facts: losing one is harmless, and none is stored. Only those in ``RELAYED`` are passed on, on
either side, and from other servers only what a session said whose role may write (``streams.reading.trust``): NOTIFY is free to
every role that may connect. Lines travel as base64 in pieces, since a payload of NOTIFY holds no NUL and fewer than 8,000
bytes. Commands that 1.43 does not know go only to clients that said one themselves: others would end the connection. Assumes a
single event loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from streams.db import driver
from streams.reading.notify import NotifyListener
from streams.reading.trust import TrustedSessions
from streams.replication.common.command_hooks import dispatch
from streams.replication.common.write_behind import BackgroundWriter
from streams.replication.errors import CommandError
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
from streams.replication.server.broadcaster import Broadcaster
from streams.replication.server.client import ReplicationClient
from streams.runtime.logs import get_logger

__all__ = ["CHANNEL", "RELAYED", "Part", "Relay", "notify_all", "parts_of"]

log = get_logger(__name__)
CHANNEL = "replsite_relay"
#: What is told to everybody.
RELAYED = (RemoteServerUp, LockReleased, NewActiveTask, CancelTask)

PART_BYTES = 7_000
#: Lines that wait for the database, and unfinished messages of other servers; more is dropped and counted.
WAITING_LIMIT_BYTES = 256 * 1024
GAP_SECONDS = 0.05
#: That somebody speaks who may not is told no more often.
TELL_SECONDS = 60.0
#: A message of one server has no more parts than this, and its names are no longer.
_MOST_PARTS = 2 * WAITING_LIMIT_BYTES // PART_BYTES
_MOST_NAME = 64
#: Unfinished messages of other servers.
_MOST_UNFINISHED = 1_000


class Part(NamedTuple):
    """A piece of a message of one server."""

    server: str
    message: str
    number: int
    parts: int
    text: str

    @classmethod
    def parse(cls, payload: str) -> Part | None:
        """Read a payload; None for what is none of ours."""
        fields = payload.split(" ")
        if len(fields) != 5 or max(len(fields[0]), len(fields[1])) > _MOST_NAME:
            return None
        if not all(text.isdecimal() and len(text) < 5 for text in fields[2:4]):
            return None
        number, parts = int(fields[2]), int(fields[3])
        return cls(fields[0], fields[1], number, parts, fields[4]) if number < parts <= _MOST_PARTS else None


def parts_of(server: str, data: bytes) -> list[str]:
    """The payloads for some lines."""
    text = base64.b64encode(data).decode("ascii")
    pieces = [text[start : start + PART_BYTES] for start in range(0, len(text), PART_BYTES)]
    message = uuid.uuid4().hex
    return [f"{server} {message} {number} {len(pieces)} {piece}" for number, piece in enumerate(pieces)]


def notify_all(cursor: Any, server: str, data: bytes) -> None:
    """Tell the lines to every server; the parts of a message stay together, since they come from one transaction."""
    channel = driver.channel(cursor, CHANNEL)
    cursor.execute("SELECT pg_notify(%s, part) FROM unnest(%s::text[]) AS part", [channel, parts_of(server, data)])


class _Listener(NotifyListener[Part]):
    """Hears what other servers say."""

    def __init__(self, relay: Relay, using: str) -> None:
        super().__init__(CHANNEL, relay.heard_in_thread, using, "relay")
        self._relay = relay
        self._trusted = TrustedSessions()
        self._told_at = -math.inf

    def take(self, heard: Sequence[tuple[int, str]]) -> list[Part]:
        """Parts that a server's session sent; the rest is counted and dropped."""
        trusted = self._trusted.of({session for session, _ in heard}, self._connection.cursor) if heard else set()
        strangers = {session for session, _ in heard} - trusted
        if strangers and time.monotonic() > self._told_at + TELL_SECONDS:
            self._told_at = time.monotonic()
            log.warning("relay.stranger", sessions=sorted(strangers)[:10])
        parts = [Part.parse(payload) for session, payload in heard if session in trusted]
        known = [part for part in parts if part is not None]
        self._relay.dropped["relay"] += len(heard) - len(known)
        return known


class Relay:
    """Passes commands on between the connections of all servers."""

    def __init__(self, broadcaster: Broadcaster) -> None:
        self.dropped: Counter[str] = Counter()
        self._broadcaster = broadcaster
        self._key = uuid.uuid4().hex
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
        """Listen and be ready to tell; raises when the database cannot be used."""
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
        """Tell what waits, and end."""
        if self._loop is not None and self._flusher is not None:
            await self._flusher.stop()
            await self._loop.run_in_executor(None, self._listener.stop)

    def pass_on(self, commands: Sequence[Command], sender: ReplicationClient) -> None:
        """From a client here: to all other clients, to the other servers, and to the handlers of this process."""
        if any(command.WORD in LATER_WORDS for command in commands):
            sender.knows_later_commands = True
        self._tell_here(commands, sender)
        for command in self._only_relayed(commands):
            self._wait(command)
        if self._flusher is not None:
            self._flusher.wake()

    # --- here -----------------------------------------------------------------------------------------------------

    def _only_relayed(self, commands: Iterable[Command]) -> Iterator[Command]:
        for command in commands:
            if isinstance(command, RELAYED):
                yield command
            else:
                self.dropped["relay"] += 1

    def _tell_here(self, commands: Iterable[Command], sender: ReplicationClient | None) -> None:
        known: list[Command] = []
        later: list[Command] = []
        for command in self._only_relayed(commands):
            (later if command.WORD in LATER_WORDS else known).append(command)
            dispatch(command)
        if known:
            self._broadcaster.relay(known, sender)
        if later:
            self._broadcaster.relay(later, sender, lambda peer: peer.knows_later_commands)

    # --- to other servers -----------------------------------------------------------------------------------------

    def _wait(self, command: Command) -> None:
        line = format_line(command, self._broadcaster.settings.line_limit_bytes)
        if line in self._waiting:
            return  # a hint that is given twice within a moment is one
        if self._waiting_bytes + len(line) > WAITING_LIMIT_BYTES:
            self.dropped[command.WORD] += 1
            return
        self._waiting[line] = None
        self._waiting_bytes += len(line)

    def _collect(self) -> bytes | None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return data or None

    def _notify(self, data: bytes) -> None:
        with self._connection.cursor() as cursor:
            notify_all(cursor, self._key, data)

    # --- from other servers ---------------------------------------------------------------------------------------

    def heard_in_thread(self, parts: list[Part]) -> None:
        """In the listener's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._heard, parts)

    def _heard(self, parts: list[Part]) -> None:
        if not parts:
            self._forget_unfinished()  # a new connection: the rest of what was under way will not come
        for part in parts:
            if part.server != self._key:
                self._take(part)

    def _forget_unfinished(self) -> None:
        self._unfinished.clear()
        self._unfinished_bytes = 0

    def _take(self, part: Part) -> None:
        key = part.server, part.message
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
            lines = base64.b64decode("".join(pieces), validate=True).decode("utf-8").split("\n")
            self._tell_here([parse_line(line) for line in lines if line], None)
        except (CommandError, binascii.Error, UnicodeDecodeError) as error:  # another version, or a stranger
            self.dropped["relay"] += 1
            log.warning("relay.not_understood", error=str(error))
